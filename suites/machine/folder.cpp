#include "suites/machine/folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "suites/codes.hpp"

namespace suites::machine {

namespace fs = std::filesystem;

namespace {

// A real write: permissions, read-only mounts, quotas and full disks all answer here and nowhere else.
std::string try_to_write(const fs::path& folder) {
  const fs::path file = folder / fmt::format(".nsa-validate-write-test-{}", getpid());
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return std::strerror(errno);
  const std::string bytes(4096, 'x');
  errno = 0;
  std::string reason;
  if (write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()) || fsync(fd) != 0)
    reason = errno == 0 ? "a short write" : std::strerror(errno);
  close(fd);
  unlink(file.c_str());
  return reason;
}

}  // namespace

FolderState look_at_folder(const fs::path& path) {
  FolderState state;
  state.path = fs::absolute(path);
  state.nearest = state.path;
  std::error_code ignored, found;
  while (fs::symlink_status(state.nearest, found).type() == fs::file_type::not_found &&
         state.nearest.has_relative_path())
    state.nearest = state.nearest.parent_path();
  // A link to nothing or in a circle, a name that is too long, a folder that may not be entered: nobody can make it.
  if (fs::status(state.nearest, found).type() == fs::file_type::not_found || found) {
    state.not_writable = fmt::format("{}: {}", state.nearest.string(),
                                     found ? found.message() : "a link to something that is not there");
    return state;
  }
  if (!fs::is_directory(state.nearest, ignored)) {
    state.not_writable = fmt::format("{} is not a folder", state.nearest.string());
    return state;
  }
  std::error_code failed;
  const fs::space_info space = fs::space(state.nearest, failed);
  if (!failed) {
    state.free_bytes = space.available;
    state.total_bytes = space.capacity;
  }
  state.not_writable = try_to_write(state.nearest);
  return state;
}

Inspection judge_folder(const FolderState& state, const FolderNeed& need) {
  Inspection result;
  result.subject = need.subject;
  result.seen = {{"path", state.path.string()},
                 {"free_bytes", state.free_bytes},
                 {"total_bytes", state.total_bytes},
                 {"needed_bytes", need.bytes},
                 {"needed_for", need.needed_for}};
  const std::string free = in_words(static_cast<double>(state.free_bytes));
  result.summary = fmt::format("{}: {} free", state.path.string(), free);
  result.judgements.push_back({need.subject + ".writable", state.not_writable.empty(),
                               fmt::format("{} cannot be written: {}", state.nearest.string(), state.not_writable),
                               codes::kRunFolder, result.seen});
  result.judgements.push_back(
      {need.subject + ".space", state.free_bytes >= need.bytes,
       fmt::format("{} has {} bytes ({}) free; {} take {} bytes ({})", state.path.string(), state.free_bytes, free,
                   need.needed_for, need.bytes, in_words(static_cast<double>(need.bytes))),
       codes::kRunFolder, result.seen});
  return result;
}

}  // namespace suites::machine
