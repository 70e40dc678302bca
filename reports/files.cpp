// write_all: every file of a run, all of them or none.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "reports/writers.hpp"

namespace reports {

namespace {

[[noreturn]] void fail(const std::filesystem::path& file, int error) {
  throw std::runtime_error(fmt::format("{}: cannot be written: {}", file.string(), std::strerror(error)));
}

// errno of the first step that failed, 0 when all of `text` reached the file.
int write_file(const std::filesystem::path& file, const std::string& text) {
  std::FILE* out = std::fopen(file.c_str(), "wb");
  if (out == nullptr) return errno;
  const bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0;
  const int error = written ? 0 : errno;
  if (std::fclose(out) != 0 && error == 0) return errno;
  return error;
}

// Files that appear together or not at all: each is written beside its place first, and all are moved when all are
// complete. A report whose companions could not be written would speak for a run that did not end as it says.
class Files {
 public:
  Files() = default;
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  ~Files() {
    std::error_code ignored;
    for (const auto& file : written_) std::filesystem::remove(temporary(file), ignored);
    if (!failed_) return;
    for (const auto& file : moved_) std::filesystem::remove(file, ignored);
  }
  void write(const std::filesystem::path& file, const std::string& text) {
    written_.push_back(file);
    if (const int error = write_file(temporary(file), text); error != 0) fail(file, error);
  }
  void move() {
    for (const auto& file : written_) {
      std::error_code error;
      std::filesystem::rename(temporary(file), file, error);
      failed_ = static_cast<bool>(error);
      if (failed_) fail(file, error.value());
      moved_.push_back(file);
    }
    written_.clear();
  }

 private:
  static std::filesystem::path temporary(std::filesystem::path file) { return file += ".tmp"; }
  std::vector<std::filesystem::path> written_, moved_;
  bool failed_ = false;
};

}  // namespace

void write_all(const Run& run, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder / "suites");
  Files files;
  files.write(folder / "report.json", dump(to_json(run), 2) + "\n");
  for (const auto& suite : run.suites) {
    files.write(folder / "suites" / (suite.name + ".json"), dump(suite_to_json(run, suite), 2) + "\n");
  }
  files.write(folder / "report.md", to_markdown(run));
  files.write(folder / "report.html", to_html(run));
  files.write(folder / "junit.xml", to_junit(run));
  files.move();
}

}  // namespace reports
