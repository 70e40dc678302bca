// The JSON Schemas (draft-07) of what is written, compiled in from schema/*.json so that they cannot be missing.
#pragma once

#include <string_view>

namespace reports {

[[nodiscard]] std::string_view report_schema();      // report.json and suites/NAME.json
[[nodiscard]] std::string_view event_schema();       // one line of events.jsonl
[[nodiscard]] std::string_view comparison_schema();  // of `compare --json`
[[nodiscard]] std::string_view fleet_schema();       // fleet.json and `merge --json`
[[nodiscard]] std::string_view bundle_schema();      // bundles/*/bundle.json

}  // namespace reports
