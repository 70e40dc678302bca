#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <regex>

#include "reports/tests/support/sample.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

using sample::finding;
using sample::run_of;
using testing::HasSubstr;
using testing::Not;

int attribute(const std::string& xml, const std::string& name) {
  std::smatch match;
  EXPECT_TRUE(std::regex_search(xml, match, std::regex("<testsuites [^>]*" + name + "=\"([0-9]+)\""))) << name;
  return std::stoi(match[1]);
}

int occurrences(const std::string& text, const std::string& word) {
  int n = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

// A small well-formedness check: elements nest, attributes are quoted and distinct, text holds no bare '<', every '&'
// begins an entity, and there is no control character.
void expect_well_formed(const std::string& xml) {
  static const std::regex kTag("<(/?)([a-z-]+)((?: [a-z]+=\"[^\"<]*\")*)(/?)>");
  static const std::regex kEntity("&(amp|lt|gt|quot|apos|#[0-9]+);");
  ASSERT_EQ(xml.rfind("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n", 0), 0u);
  const std::string body = xml.substr(xml.find('\n') + 1);
  std::vector<std::string> open;
  int tags = 0;
  for (std::sregex_iterator it(body.begin(), body.end(), kTag), end; it != end; ++it, ++tags) {
    if ((*it)[1].length() > 0) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), (*it)[2]);
      open.pop_back();
    } else if ((*it)[4].length() == 0) {
      open.push_back((*it)[2]);
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(occurrences(body, "<"), tags);
  EXPECT_EQ(
      occurrences(body, "&"),
      static_cast<int>(std::distance(std::sregex_iterator(body.begin(), body.end(), kEntity), std::sregex_iterator())));
  for (const char c : body) EXPECT_TRUE(static_cast<unsigned char>(c) >= ' ' || c == '\n');
}

TEST(Junit, Golden) {
  const std::string text = to_junit(sample::mixed());
  sample::expect_golden("mixed.junit.xml", text);
  expect_well_formed(text);
}

TEST(Junit, RedExactlyWhenNotReady) {
  for (int status = 0; status <= static_cast<int>(Status::cancelled); ++status) {
    for (int severity = -1; severity <= static_cast<int>(Severity::isolate); ++severity) {
      for (const bool required : {true, false}) {
        for (const bool complete : {true, false}) {
          reports::Run run = run_of({static_cast<Status>(status), Status::pass});
          run.complete = complete;
          run.suites[0].cases[0].required = required;
          if (severity >= 0) run.suites[0].cases[0].findings = {finding(static_cast<Severity>(severity))};
          const std::string text = to_junit(run);
          const bool red = attribute(text, "failures") + attribute(text, "errors") > 0;
          const bool unneeded =
              !required && !executed(run.suites[0].cases[0].status);  // blocked but not required: red here
          const bool ready = assess(run).verdict == Verdict::ready;
          EXPECT_TRUE(red != ready || unneeded) << to_string(run.suites[0].cases[0].status) << " " << severity;
          EXPECT_TRUE(ready || red);
        }
      }
    }
  }
}

TEST(Junit, CountsAreThoseOfItsElements) {
  std::vector<Status> all;
  for (int i = 0; i <= static_cast<int>(Status::cancelled); ++i) all.push_back(static_cast<Status>(i));
  const std::string text = to_junit(run_of(all));
  EXPECT_EQ(attribute(text, "tests"), occurrences(text, "<testcase "));
  EXPECT_EQ(attribute(text, "failures"), occurrences(text, "<failure "));
  EXPECT_EQ(attribute(text, "errors"), occurrences(text, "<error "));
  EXPECT_EQ(occurrences(text, "<skipped "), 1);
  EXPECT_THAT(text, HasSubstr(" skipped=\"1\""));
  EXPECT_EQ(attribute(text, "errors"), 8);
}

reports::Run with_every_status() {
  std::vector<Status> all;
  for (int i = 0; i <= static_cast<int>(Status::cancelled); ++i) all.push_back(static_cast<Status>(i));
  reports::Run run = run_of(all);
  for (Case& c : run.suites[0].cases) c.metrics = {{"rate", 1.5, "tok/s"}};
  run.suites[0].cases[0].duration_s = -0.25;  // a clock that was set back
  run.suites[0].duration_s = run.duration_s = std::nan("");
  return run;
}

// Always, also where there is no tool: the rules that were broken once.
TEST(Junit, PropertiesStandInSuitesAndTimesArePlainNumbers) {
  for (const reports::Run& run : {sample::mixed(), with_every_status()}) {
    const std::string text = to_junit(run);
    static const std::regex kCase("<testcase [^>]*>([\\s\\S]*?)</testcase>");
    for (std::sregex_iterator it(text.begin(), text.end(), kCase), end; it != end; ++it)
      EXPECT_THAT((*it)[1].str(), Not(HasSubstr("<propert")));
    EXPECT_THAT(text.substr(0, text.find("<testsuite ")), Not(HasSubstr("skipped=")));
    static const std::regex kTime(" time=\"([^\"]*)\"");
    for (std::sregex_iterator it(text.begin(), text.end(), kTime), end; it != end; ++it)
      EXPECT_TRUE(std::regex_match((*it)[1].str(), std::regex("[0-9]+\\.[0-9]{3}"))) << (*it)[0];
    EXPECT_THAT(text, HasSubstr("status: pass"));
  }
}

TEST(Junit, IsValidByTheSchemaOfTheStrictestReader) {
  if (std::system("xmllint --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "xmllint is not installed";
  const std::string file = testing::TempDir() + "/junit_schema_test.xml";
  for (const reports::Run& run : {sample::mixed(), with_every_status()}) {
    std::ofstream(file) << to_junit(run);
    const std::string command = "xmllint --noout --schema '" REPORTS_TEST_DATA "/junit.xsd' '" + file + "'";
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
}

TEST(Junit, HostileTextStaysText) {
  std::string evil = "]]></failure>&<\"'";
  for (char c = 1; c < 32; ++c) evil += c;
  evil += "\xff \xEF\xBF\xBF";
  reports::Run run = run_of({Status::fail});
  run.id = evil;
  Case& c = run.suites[0].cases[0];
  c.id = c.reason = c.repro = evil;
  c.metrics = {{evil, evil, evil}};
  c.findings = {{evil, Severity::block, evil, evil, evil, evil, evil, evil, Json::object()}};
  run.findings = c.findings;
  expect_well_formed(to_junit(run));
  EXPECT_THAT(to_junit(run), Not(HasSubstr("\xEF\xBF\xBF")));
}

}  // namespace
}  // namespace reports
