#include "suites/selftest/folder.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/atomic_file.hpp"
#include "harness/journal_writer.hpp"
#include "harness/settings.hpp"

namespace suites::selftest {

namespace fs = std::filesystem;

namespace {

bool is_ours(std::string name, const FolderWish& wish) {
  for (const std::string_view end : {std::string_view(kLog), base::AtomicFile::kTemporary})
    if (name.ends_with(end)) name.resize(name.size() - end.size());
  return wish.ours(name);
}

// By name. Where anything is foreign nothing goes.
void remove_earlier(const fs::path& folder, const FolderWish& wish) {
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!is_ours(name, wish))
      throw harness::UsageError(
          fmt::format("--out: {} holds '{}', which no {} left there; nothing was removed: name "
                      "another folder, or move it away",
                      folder.string(), name, wish.what));
    old.push_back(entry.path());
  }
  for (const fs::path& path : old) fs::remove_all(path);  // of a link the link alone
}

}  // namespace

fs::path make_folder(const FolderWish& wish, const std::string& run_id) {
  using harness::UsageError;
  if (wish.out && wish.out->empty()) throw UsageError("--out: '' names no folder");
  const fs::path folder = fs::absolute(wish.out ? fs::path(*wish.out) : fs::path("out") / run_id);
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error))
    throw UsageError(fmt::format("--out: {} is no folder", folder.string()));
  fs::create_directories(folder, error);
  if (error) throw harness::InfrastructureError(fmt::format("{}: {}", folder.string(), error.message()));
  if (wish.force) remove_earlier(folder, wish);
  if (!fs::is_empty(folder))
    throw UsageError(
        fmt::format("--out: {} is not empty; name another folder, or --force to remove what an earlier {} left there",
                    folder.string(), wish.what));
  return folder;
}

std::string shell(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words)
    quoted.push_back(word.find_first_of("[]*?=, '$\"\\&|;<>()") == std::string::npos ? word : "'" + word + "'");
  return fmt::format("{}", fmt::join(quoted, " "));
}

}  // namespace suites::selftest
