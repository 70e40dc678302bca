// What a journal's events and a report's objects write alike, read in one place: names, findings, checks, metrics.
// Private to reports/. All throw std::invalid_argument naming the field, its value and what is allowed.
#pragma once

#include <string>
#include <string_view>

#include "reports/model.hpp"

namespace reports::records {

[[nodiscard]] std::string level(const Json& object);  // smoke, standard
// A suite's name becomes a file name (suites/NAME.json), so it must not lead anywhere else.
[[nodiscard]] std::string suite_name(const Json& suite);
[[nodiscard]] std::vector<std::string> required_suites(const Json& suite);
[[nodiscard]] Status status(const Json& object);
[[nodiscard]] ExitCode interruption(const Json& object);  // an exit code other than 0

[[nodiscard]] Case planned_case(const Json& entry, const std::string& suite);
[[nodiscard]] Finding finding(const Json& object);
[[nodiscard]] Check check(const Json& object);
[[nodiscard]] Metric metric(const Json& object);

// Whether brackets nest deeper than that, in a value or in its text before it is parsed: the parser, and whoever walks
// a value, has only so much stack. This one needs none.
[[nodiscard]] bool nests_deeper(const Json& value, std::size_t depth);
[[nodiscard]] bool nests_deeper(std::string_view text, std::size_t depth);

// Whether the text is one object from its first character to its last: brackets and quotes close, and no control
// character is in it. What is between them may be anything.
[[nodiscard]] bool is_one_object(std::string_view text);

// Three numbers that a machine can hold: "1.1.0".
[[nodiscard]] bool is_version(std::string_view text);
// Throws JournalError unless `object` is of this schema and of the own version's major. `where` and `what` ("journal")
// are for the message.
void check_schema(const Json& object, std::string_view schema, std::string_view own_version, const std::string& where,
                  std::string_view what);

}  // namespace reports::records
