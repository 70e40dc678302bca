// A run from whatever is left of it: its folder, its journal, or its report.json.
#pragma once

#include <filesystem>
#include <istream>
#include <string>

#include "reports/journal.hpp"

namespace reports {

inline constexpr const char* kReportFile = "report.json";

// Of a folder its journal, of which everything else is derived; where there is none, its report.json. A file is a
// journal when its name or its first line says so. Throws JournalError (journal.hpp): the file, the place in it and
// what is wrong; `incompatible` is set for another schema major.
[[nodiscard]] Run read_run(const std::filesystem::path& path);

// A report.json, as to_json() writes it (writers.hpp). What stands in it twice must agree: a report whose totals or
// verdict are not those of its cases and findings is damaged. Causes are not read: find_causes() derives them.
[[nodiscard]] Run read_report(const std::filesystem::path& file);
[[nodiscard]] Run read_report(std::istream& in, const std::string& name);  // `name` for messages

}  // namespace reports
