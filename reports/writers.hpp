// Writers: pure functions Run -> text, and the one function that puts all files of a run into its folder.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "reports/model.hpp"

namespace reports {

inline constexpr const char* kReportSchema = "nsa-validate/report";
inline constexpr const char* kSuiteReportSchema = "nsa-validate/suite-report";
inline constexpr const char* kReportSchemaVersion = "1.3.0";  // of both

[[nodiscard]] Json to_json(const Run& run);                            // report.json, schema/report-1.schema.json
[[nodiscard]] Json suite_to_json(const Run& run, const Suite& suite);  // suites/NAME.json
[[nodiscard]] std::string to_markdown(const Run& run);                 // report.md
[[nodiscard]] std::string to_html(const Run& run);                     // report.html, self-contained
[[nodiscard]] std::string to_junit(const Run& run);                    // junit.xml
// Findings, verdict and, as the last line, `summary: N passed, N failed, N skipped`.
[[nodiscard]] std::string to_console(const Run& run, bool color);

// Writes report.json, report.md, report.html, junit.xml and suites/*.json into `folder`, each through a temporary file
// and rename, so that a reader never sees half a report. Returns what could not be written, a sentence each, with the
// path and the reason (disk full, not writable); the other files are there. Who gets one adds it to the run and writes
// again, so that what is there tells of what is not. `own`: the files that this caller has written; one of them that
// cannot be written again is removed, because it does not tell of that. Others' earlier files stay as they are.
[[nodiscard]] std::vector<std::string> write_all(const Run& run, const std::filesystem::path& folder,
                                                 std::set<std::filesystem::path>& own);

// Writes the bundle of a case into FOLDER/bundles/NAME/, in the same way. Throws std::runtime_error with the path and
// the reason.
void write_bundle(const std::filesystem::path& folder, const std::string& name, const std::string& text,
                  std::set<std::filesystem::path>& own);

}  // namespace reports
