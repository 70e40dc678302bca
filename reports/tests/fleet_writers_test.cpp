// The texts of a fleet: valid by the schema, safe whatever a name holds, and short where a thousand hosts say the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "reports/fleet.hpp"
#include "reports/schema.hpp"
#include "reports/tests/support/fleet_sample.hpp"
#include "reports/tests/support/sample.hpp"
#include "reports/tests/support/schema_validator.hpp"

namespace reports {
namespace {

using sample::fleet_of;
using sample::options;
using sample::run_of_host;
using sample::runs_of_hosts;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// One of everything: slow, odd, missing, unreadable, failed.
Fleet mixed() {
  auto runs = runs_of_hosts(12);
  runs[1].suites[0].cases[0].metrics[0].value = 400;
  runs[2].provenance["cuda"]["driver"] = "570.10";
  runs[3].provenance["build"]["build_id"] = "b2";
  runs[4].suites[0].cases[1].metrics[0].value = 5.26;
  runs[5].suites[0].cases[0].findings = {sample::finding(Severity::block)};
  runs[6].complete = false;
  std::vector<FleetHost> hosts;
  for (const reports::Run& run : runs) hosts.push_back(host_of(run, "run/x"));
  hosts.push_back(unreadable_host("node20", "run/node20", "run/node20/events.jsonl:3: not an event", false));
  FleetOptions with = options();
  with.expected_number = 14;
  return merge(hosts, with);
}

TEST(FleetWriters, JsonIsValidByItsSchema) {
  const Json schema = Json::parse(fleet_schema());
  for (const Fleet& fleet : {mixed(), fleet_of(runs_of_hosts(2))})
    EXPECT_THAT(schema::violations(schema, Json::parse(dump(to_json(fleet)))), IsEmpty());
  const Json good = to_json(mixed());
  const std::vector<std::pair<const char*, Json>> rows{
      {"/schema", "other"},        {"/schema_version", "2.0.0"},      {"/verdict", "FINE"},
      {"/hosts/0/state", "gone"},  {"/hosts/0/verdict", nullptr},     {"/findings/0/severity", "bad"},
      {"/findings/0/hosts/0", -1}, {"/differences/0/kind", "colour"}, {"/slow_hosts/found/0/chance", "small"}};
  for (const auto& [where, value] : rows) {
    Json bad = good;
    bad[Json::json_pointer(where)] = value;
    EXPECT_THAT(schema::violations(schema, bad), Not(IsEmpty())) << where;
  }
  Json bad = good;
  for (Json& host : bad["hosts"]) host.erase("trouble");
  EXPECT_THAT(schema::violations(schema, bad), Not(IsEmpty())) << "one that cannot be read says why";
}

TEST(FleetWriters, WordsOfTheSchemaAreThoseOfTheTables) {
  const Json host = Json::parse(fleet_schema())["definitions"]["host"]["properties"];
  Json statuses = Json::array();
  for (int i = 0; i <= static_cast<int>(Status::cancelled); ++i) statuses.push_back(to_string(static_cast<Status>(i)));
  EXPECT_EQ(host["suites"]["additionalProperties"]["enum"], statuses);
}

std::string without_breaks(std::string html) {
  const std::string mark = "<wbr>";
  for (std::size_t at; (at = html.find(mark)) != std::string::npos;) html.erase(at, mark.size());
  return html;
}

TEST(FleetWriters, EveryTextNamesTheTrouble) {
  const Fleet fleet = mixed();
  for (const std::string& text : {to_text(fleet), to_markdown(fleet), without_breaks(to_html(fleet))}) {
    for (const char* what : {"NOT READY", "node01", "node02", "570.10", "node03", "b2", "node04", "node05", "node06",
                             "node20", "not an event", "one of 14", "log-normal", "at most 1 %"})
      EXPECT_THAT(text, HasSubstr(what));
  }
  EXPECT_THAT(to_text(fleet), EndsWith("NOT READY, exit code 2\n"));
}

TEST(FleetWriters, NoNameBecomesMarkupOrReachesTheTerminal) {
  const std::string evil = "a\x1b[31m<script>alert(1)</script>|`x`\n# head\r\x07 \xff";
  reports::Run run = run_of_host(evil);
  run.provenance["cuda"]["driver"] = evil;
  run.suites[0].cases[0].findings = {sample::finding(Severity::block)};
  run.suites[0].cases[0].findings[0].title = run.suites[0].cases[0].findings[0].message = evil;
  run.suites[0].cases[0].metrics[0].name = evil;
  std::vector<FleetHost> hosts{host_of(run, evil), unreadable_host(evil + "2", evil, evil, false)};
  for (int i = 0; i < 9; ++i) hosts.push_back(host_of(run_of_host(fmt::format("n{}", i)), "run"));
  const Fleet fleet = merge(hosts, options());
  const std::string text = to_text(fleet), markdown = to_markdown(fleet), html = to_html(fleet);
  for (const std::string& one : {text, markdown, html}) {
    for (const char control : {'\x1b', '\x07', '\r'}) EXPECT_EQ(one.find(control), std::string::npos);
    EXPECT_NO_THROW((void)Json(one).dump()) << "well-formed UTF-8";
  }
  for (const std::string& one : {text, markdown}) EXPECT_THAT(one, Not(HasSubstr("\n# head")));
  EXPECT_THAT(html, Not(HasSubstr("<script>")));
  EXPECT_THAT(markdown, Not(HasSubstr("<script>alert(1)</script>|")));
  EXPECT_TRUE(Json::accept(dump(to_json(fleet))));
}

TEST(FleetWriters, TheTerminalShowsTheFirstOfMany) {
  std::vector<FleetHost> hosts;
  for (int i = 0; i < 300; ++i) hosts.push_back(unreadable_host(fmt::format("n{:03}", i), "run", "torn", false));
  const std::string text = to_text(merge(hosts, options()));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 60);
  EXPECT_THAT(text, AllOf(HasSubstr("  and 276 more"), EndsWith("merge: 300 hosts: 300 unreadable; CONDITIONAL, exit "
                                                                "code 2\n")));
}

TEST(FleetWriters, FilesAreWrittenAndWhatCannotBeIsTold) {
  const auto folder = sample::fresh_folder() / "new";
  const Fleet fleet = mixed();
  EXPECT_THAT(write_fleet(fleet, folder), IsEmpty());
  EXPECT_EQ(sample::read_file(folder / "fleet.md"), to_markdown(fleet));
  EXPECT_EQ(sample::read_file(folder / "fleet.html"), to_html(fleet));
  EXPECT_EQ(Json::parse(sample::read_file(folder / kFleetFile)), to_json(fleet));
  std::filesystem::remove(folder / "fleet.md");
  std::filesystem::create_directory(folder / "fleet.md");
  EXPECT_THAT(write_fleet(fleet, folder), testing::ElementsAre(HasSubstr("fleet.md: cannot be written")));
}

}  // namespace
}  // namespace reports
