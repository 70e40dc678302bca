// write_all: every file of a run, each whole or not at all.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

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

void replace(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::path temporary = file;
  temporary += ".tmp";
  std::error_code ignored;
  if (const int error = write_file(temporary, text); error != 0) {
    std::filesystem::remove(temporary, ignored);
    fail(file, error);
  }
  std::error_code error;
  std::filesystem::rename(temporary, file, error);
  if (error) {
    std::filesystem::remove(temporary, ignored);
    fail(file, error.value());
  }
}

}  // namespace

void write_all(const Run& run, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder / "suites");
  replace(folder / "report.json", dump(to_json(run), 2) + "\n");
  for (const auto& suite : run.suites) {
    replace(folder / "suites" / (suite.name + ".json"), dump(suite_to_json(run, suite), 2) + "\n");
  }
  replace(folder / "report.md", to_markdown(run));
  replace(folder / "report.html", to_html(run));
  replace(folder / "junit.xml", to_junit(run));
}

}  // namespace reports
