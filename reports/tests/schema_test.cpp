// The schemas themselves, and the validator that reads them: both must be able to say no.
#include "reports/schema.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <sstream>

#include "reports/tests/support/sample.hpp"
#include "reports/tests/support/schema_validator.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<std::string> check(const char* schema_text, const char* value) {
  return schema::violations(Json::parse(schema_text), Json::parse(value));
}

TEST(Validator, EveryKeywordCanSayNo) {
  const std::vector<std::array<const char*, 3>> rows{
      {R"({"type": "integer"})", "3", "3.5"},
      {R"({"type": ["integer", "null"]})", "null", "\"x\""},
      {R"({"const": 1})", "1", "2"},
      {R"({"enum": ["a", 1]})", "\"a\"", "\"b\""},
      {R"({"required": ["a"]})", R"({"a": 1})", "{}"},
      {R"({"properties": {"a": {"type": "string"}}})", R"({"a": "x"})", R"({"a": 1})"},
      {R"({"properties": {"a": true}, "additionalProperties": false})", R"({"a": 1})", R"({"b": 1})"},
      {R"({"items": {"minimum": 0}})", "[0, 1]", "[0, -1]"},
      {R"({"contains": {"const": 1}})", "[2, 1]", "[2]"},
      {R"({"minItems": 1})", "[1]", "[]"},
      {R"({"minLength": 1})", "\"a\"", "\"\""},
      {R"({"pattern": "^a+$"})", "\"aa\"", "\"ab\""},
      {R"({"not": {"const": 1}})", "2", "1"},
      {R"({"allOf": [{"minimum": 0}, {"type": "integer"}]})", "1", "-1"},
      {R"({"anyOf": [{"const": 1}, {"const": 2}]})", "2", "3"},
      {R"({"oneOf": [{"minimum": 0}, {"minimum": 5}]})", "1", "6"},
      {R"({"if": {"minimum": 5}, "then": {"type": "integer"}, "else": {"const": 1}})", "6", "5.5"},
      {R"({"if": {"minimum": 5}, "then": {"type": "integer"}, "else": {"const": 1}})", "1", "2"},
      {R"({"$ref": "#/definitions/n", "definitions": {"n": {"minimum": 0}}})", "0", "-1"},
  };
  for (const auto& [schema_text, good, bad] : rows) {
    EXPECT_THAT(check(schema_text, good), IsEmpty()) << schema_text;
    EXPECT_THAT(check(schema_text, bad), Not(IsEmpty())) << schema_text;
  }
}

TEST(Validator, RefusesWhatItDoesNotKnow) {
  EXPECT_THROW(check(R"({"maximum": 1})", "1"), std::invalid_argument);
  EXPECT_THROW(check(R"({"properties": {"a": {"items": {"uniqueItems": true}}}})", "1"), std::invalid_argument);
  EXPECT_THROW(check(R"({"if": {"format": "date"}})", "1"), std::invalid_argument);
  EXPECT_THROW(check(R"({"definitions": {"unused": {"typo": 1}}})", "1"), std::invalid_argument);
  EXPECT_THROW(check(R"({"$ref": "#/definitions/none"})", "1"), std::invalid_argument);
  EXPECT_THROW(check(R"({"type": "float"})", "1"), std::invalid_argument);
}

// Each of these is a report with one thing wrong.
TEST(ReportSchema, RefusesBadReports) {
  const Json schema = Json::parse(report_schema());
  const Json good = Json::parse(dump(to_json(sample::mixed())));
  ASSERT_THAT(schema::violations(schema, good), IsEmpty());
  const std::vector<std::pair<std::string, Json>> changes{
      {"/schema_version", "2.0.0"},
      {"/schema", "nsa-validate/other"},
      {"/verdict", "READY"},
      {"/verdict", "MAYBE"},
      {"/run/exit_code", 0},
      {"/run/exit_code", 77},
      {"/run/started", "yesterday"},
      {"/totals/planned", -1},
      {"/totals/planned", 1.5},
      {"/suites/0/name", "../x"},
      {"/suites/0/outcome", "passed"},
      {"/suites/0/cases/0/status", "passed"},
      {"/suites/0/cases/0/reason", "a pass with an excuse"},
      {"/suites/0/cases/0/last_phase", "a pass that died"},
      {"/suites/0/cases/0/findings/0/severity", "block"},
      {"/suites/0/cases/0/findings/0/severity", "fatal"},
      {"/suites/0/cases/0/level", "quick"},
      {"/suites/0/cases/1/reason_code", ""},
      {"/suites/1/cases/0/metrics/0/value", nullptr},
      {"/suites/1/cases/0/metrics/0/value", "fast"},
      {"/suites/1/cases/0/findings/0/severity", "warn"},
      {"/suites/1/cases/0/checks/0/pass", "yes"},
      {"/suites/1/cases/0/seed", -1},
      {"/suites/1/cases/0/duration_s", "NaN"},
      {"/not_tested/0", 1},
  };
  for (const auto& [where, value] : changes) {
    Json bad = good;
    bad[Json::json_pointer(where)] = value;
    EXPECT_THAT(schema::violations(schema, bad), Not(IsEmpty())) << where << " = " << value;
  }
  const std::vector<std::pair<std::string, std::string>> removals{{"", "not_tested"},
                                                                  {"", "scope"},
                                                                  {"/run", "complete"},
                                                                  {"/totals", "inconclusive"},
                                                                  {"/suites/0", "cases"},
                                                                  {"/suites/0/cases/1", "reason_code"},
                                                                  {"/suites/0/cases/1", "reason"},
                                                                  {"/suites/1/cases/2", "last_phase"},
                                                                  {"/suites/1/cases/0", "findings"},
                                                                  {"/suites/1/cases/0/findings/0", "repro"}};
  for (const auto& [where, key] : removals) {
    Json bad = good;
    bad[Json::json_pointer(where)].erase(key);
    EXPECT_THAT(schema::violations(schema, bad), Not(IsEmpty())) << where << " without " << key;
  }
}

TEST(ReportSchema, TheListsOfWordsAreThoseOfTheTables) {
  const Json schema = Json::parse(report_schema());
  Json statuses = Json::array(), severities = Json::array(), codes = Json::array();
  for (const auto& [status, n] : count({}).by_status) statuses.push_back(to_string(status));
  for (int i = 0; i <= static_cast<int>(Severity::isolate); ++i)
    severities.push_back(to_string(static_cast<Severity>(i)));
  EXPECT_EQ(schema["definitions"]["status"]["enum"], statuses);
  EXPECT_EQ(schema["definitions"]["finding"]["properties"]["severity"]["enum"], severities);
  EXPECT_EQ(schema["definitions"]["verdict"]["enum"], Json::array({"READY", "CONDITIONAL", "NOT READY"}));
  const Json& listed = schema["definitions"]["run"]["properties"]["exit_code"]["enum"];
  EXPECT_EQ(listed.size(), exit_code_table().size());
  for (const auto& row : exit_code_table()) EXPECT_THAT(listed, Contains(Json(static_cast<int>(row.code))));
}

TEST(EventSchema, AcceptsTheSampleAndRefusesBadEvents) {
  const Json schema = Json::parse(event_schema());
  std::istringstream lines(sample::read_file(std::filesystem::path(REPORTS_TEST_DATA) / "mixed.events.jsonl"));
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n)
    EXPECT_THAT(schema::violations(schema, Json::parse(line)), IsEmpty()) << line;
  EXPECT_GT(n, 30);
  for (const char* bad :
       {R"({"event": "phase", "t": "2026-11-21T01:31:05.000Z", "seq": 1})",
        R"({"event": "phase", "case": "a", "name": "b", "t": "now", "seq": 1})",
        R"({"event": "x", "t": "2026-11-21T01:31:05.000Z", "seq": -1})",
        R"({"event": "case_end", "case": "a", "status": "ok", "t": "2026-11-21T01:31:05.000Z", "seq": 1})",
        R"({"event": "metric", "case": "a", "name": "m", "value": null, "t": "2026-11-21T01:31:05.000Z", "seq": 1})",
        R"({"event": "run_begin", "t": "2026-11-21T01:31:05.000Z", "seq": 0})"}) {
    EXPECT_THAT(schema::violations(schema, Json::parse(bad)), Not(IsEmpty())) << bad;
  }
}

}  // namespace
}  // namespace reports
