// Material for the tests: runs made by hand, journals made of lines, golden files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reports/model.hpp"

namespace reports::sample {

// How many there are.
inline constexpr int kStatuses = static_cast<int>(Status::cancelled) + 1;
inline constexpr int kSeverities = static_cast<int>(Severity::isolate) + 1;

// A complete run with one suite "alpha" of `statuses.size()` cases "alpha/case0", "alpha/case1", ...
[[nodiscard]] Run run_of(const std::vector<Status>& statuses);
[[nodiscard]] Finding finding(Severity severity, const std::string& category = "numerics");

// The run of data/mixed.events.jsonl: passes, a failure, a crash, a skip, NaN, planted faults, characters that every
// writer must escape.
[[nodiscard]] Run mixed();

// A journal in the test's temporary folder, from lines without "t" and "seq" (added) or from raw text.
class Journal {
 public:
  Journal();                               // with a run_begin for the cases a/one and a/two
  Journal& add(const std::string& event);  // {"event": "case_begin", ...}
  Journal& raw(const std::string& text);   // as it stands, no newline added
  [[nodiscard]] std::filesystem::path write() const;
  [[nodiscard]] const std::string& text() const { return text_; }

  static std::filesystem::path write(const std::string& text);

 private:
  std::string text_;
  int seq_ = 0;
};

// Compares with data/NAME; when they differ, the text is kept in the temporary folder and both paths are told.
void expect_golden(const std::string& name, const std::string& text);

[[nodiscard]] std::string read_file(const std::filesystem::path& file);
// A fresh empty folder, named after the running test.
[[nodiscard]] std::filesystem::path fresh_folder();

}  // namespace reports::sample
