// write_all: every file of a run, each for itself; the same for a bundle and a fleet.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "reports/bundle.hpp"
#include "reports/fleet.hpp"
#include "reports/writers.hpp"

namespace reports {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& file, int error) {
  std::error_code ignored;
  const bool link = (error == ELOOP || error == ENOTDIR) && fs::is_symlink(fs::symlink_status(file, ignored));
  throw std::runtime_error(fmt::format("{}: cannot be written: {}", file.string(),
                                       link ? "it is a link, which is not followed" : std::strerror(error)));
}

// A folder that stays the one that was opened, whatever gets its name meanwhile. A link in its place is not followed,
// nor are links in it: they lead to what is not the run's.
class Folder {
 public:
  explicit Folder(const fs::path& path) : path_(path), fd_(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_ < 0) fail(path, errno);
  }
  Folder(const Folder& above, const char* name) : path_(above.path_ / name) {
    if (mkdirat(above.fd_, name, 0777) != 0 && errno != EEXIST) fail(path_, errno);
    fd_ = openat(above.fd_, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd_ < 0) fail(path_, errno);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { close(fd_); }

  [[nodiscard]] fs::path path_of(const std::string& name) const { return path_ / name; }
  // errno of the first step that failed, 0 when all of `text` reached the file.
  [[nodiscard]] int write(const std::string& name, const std::string& text) const;
  [[nodiscard]] int rename(const std::string& from, const std::string& to) const {
    return renameat(fd_, from.c_str(), fd_, to.c_str()) == 0 ? 0 : errno;
  }
  void remove(const std::string& name) const { (void)unlinkat(fd_, name.c_str(), 0); }

 private:
  fs::path path_;
  int fd_ = -1;
};

int Folder::write(const std::string& name, const std::string& text) const {
  // O_NONBLOCK: a pipe of that name is an error instead of a wait for its reader.
  constexpr int kHow = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const int fd = openat(fd_, name.c_str(), kHow, 0666);
  if (fd < 0) return errno;
  struct stat what {};
  std::FILE* out = fstat(fd, &what) == 0 && S_ISREG(what.st_mode) ? fdopen(fd, "wb") : nullptr;
  if (out == nullptr) {
    close(fd);
    return EINVAL;
  }
  const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0;
  int error = written ? 0 : errno;
  if (std::fclose(out) != 0 && error == 0) error = errno;
  if (error != 0) remove(name);  // the half of it
  return error;
}

// Beside its place first, then moved, so that a reader never sees half of it.
void put(const Folder& folder, const std::string& name, const std::string& text, std::set<fs::path>& own) {
  const std::string temporary = name + ".tmp";
  const fs::path file = folder.path_of(name);
  int error = folder.write(temporary, text);
  const bool link_in_the_way = error == ELOOP;
  if (error == 0) {
    error = folder.rename(temporary, name);
    if (error == 0) {
      own.insert(file);
      return;
    }
    folder.remove(temporary);
  }
  if (own.erase(file) > 0) folder.remove(name);
  fail(link_in_the_way ? folder.path_of(temporary) : file, error);
}

// Each step for itself: what one of them loses, the others do not.
struct Attempts {
  std::vector<std::string> lost;
  template <typename Write>
  void operator()(const Write& write) {
    try {
      write();
    } catch (const std::exception& error) {
      lost.emplace_back(error.what());
    }
  }
};

}  // namespace

std::vector<std::string> write_all(const Run& run, const std::filesystem::path& path,
                                   std::set<std::filesystem::path>& own) {
  Attempts attempt;
  attempt([&] {
    fs::create_directories(path);
    const Folder folder(path);
    attempt([&] { put(folder, "report.json", dump(to_json(run), 2) + "\n", own); });
    attempt([&] { put(folder, "report.md", to_markdown(run), own); });
    attempt([&] { put(folder, "report.html", to_html(run), own); });
    attempt([&] { put(folder, "junit.xml", to_junit(run), own); });
    attempt([&] {
      const Folder suites(folder, "suites");
      for (const auto& suite : run.suites)
        attempt([&] { put(suites, suite.name + ".json", dump(suite_to_json(run, suite), 2) + "\n", own); });
    });
  });
  return attempt.lost;
}

std::vector<std::string> write_fleet(const Fleet& fleet, const std::filesystem::path& path) {
  std::set<fs::path> own;
  Attempts attempt;
  attempt([&] {
    fs::create_directories(path);
    const Folder folder(path);
    attempt([&] { put(folder, kFleetFile, dump(to_json(fleet), 1) + "\n", own); });
    attempt([&] { put(folder, "fleet.md", to_markdown(fleet), own); });
    attempt([&] { put(folder, "fleet.html", to_html(fleet), own); });
  });
  return attempt.lost;
}

void write_bundle(const std::filesystem::path& path, const std::string& name, const std::string& text,
                  std::set<std::filesystem::path>& own) {
  const Folder folder(path);
  const Folder bundles(folder, kBundleFolder);
  put(Folder(bundles, name.c_str()), kBundleFile, text, own);
}

}  // namespace reports
