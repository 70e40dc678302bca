// write_all: every file of a run, each for itself; the same for a bundle and a fleet.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/atomic_file.hpp"
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
  [[nodiscard]] int get() const { return fd_; }
  void remove(const std::string& name) const { (void)unlinkat(fd_, name.c_str(), 0); }

 private:
  fs::path path_;
  int fd_ = -1;
};

// A reader never sees half of it. It can be made again from the journal, so nobody waits for the disk.
void put(const Folder& folder, const std::string& name, const std::string& text, std::set<fs::path>& own) {
  const fs::path file = folder.path_of(name);
  try {
    base::AtomicFile made(folder.get(), file);
    made.write(text);
    made.commit(/*synced=*/false);
    own.insert(file);
  } catch (const base::FileError& error) {
    if (own.erase(file) > 0) folder.remove(name);
    fail(error.error() == ELOOP ? error.path() : file, error.error());
  }
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
