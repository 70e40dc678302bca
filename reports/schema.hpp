// The JSON Schemas (draft-07) of what a run writes, compiled in from schema/*.json so that they cannot be missing.
#pragma once

#include <string_view>

namespace reports {

[[nodiscard]] std::string_view report_schema();  // report.json and suites/NAME.json
[[nodiscard]] std::string_view event_schema();   // one line of events.jsonl

}  // namespace reports
