#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "reports/tests/support/sample.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

using sample::finding;
using sample::run_of;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Names of elements that are closed out of order or not at all.
std::vector<std::string> unbalanced(const std::string& html) {
  static const std::regex kTag("<(/?)([a-z0-9]+)[^>]*>");
  std::vector<std::string> open, wrong;
  for (std::sregex_iterator it(html.begin(), html.end(), kTag), end; it != end; ++it) {
    const std::string name = (*it)[2];
    if (name == "meta" || name == "br" || name == "wbr") continue;
    if ((*it)[1].length() == 0) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      wrong.push_back(name);
    } else {
      open.pop_back();
    }
  }
  wrong.insert(wrong.end(), open.begin(), open.end());
  return wrong;
}

TEST(Html, Golden) {
  const std::string text = to_html(sample::mixed());
  sample::expect_golden("mixed.html", text);
  EXPECT_THAT(unbalanced(text), IsEmpty());
}

TEST(Html, StacksAreLinesOfABlock) {
  reports::Run run = run_of({Status::crash});
  run.suites[0].cases[0].findings = {finding(Severity::block)};
  run.suites[0].cases[0].findings[0].evidence = Json{{"stacks", {"thread 7 x", "  f<int>()+0x1 (x)"}}};
  EXPECT_THAT(to_html(run), HasSubstr("<pre>thread 7 x\n  f&lt;int&gt;()+0x1 (x)\n</pre>"));
}

TEST(Html, NeedsNothingFromElsewhere) {
  const std::string text = to_html(sample::mixed());
  for (const auto* word : {"<script", "<link", "<img", "src=", "http:", "https:", "url(", "@import"}) {
    EXPECT_THAT(text, Not(HasSubstr(word)));
  }
  EXPECT_THAT(text, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(text, HasSubstr("<meta charset=\"utf-8\">"));
}

TEST(Html, OneCellACaseThatLeadsToItAndTellsItsOutcomeWithoutColour) {
  const std::string text = to_html(run_of({Status::pass, Status::crash, Status::skip}));
  EXPECT_THAT(text, HasSubstr("title=\"alpha/case1: crash\" aria-label=\"alpha/case1: crash\">!</a>"));
  EXPECT_THAT(text, HasSubstr("title=\"alpha/case0: pass\" aria-label=\"alpha/case0: pass\">\u2713</a>"));
  EXPECT_THAT(text, HasSubstr("title=\"alpha/case2: skip\" aria-label=\"alpha/case2: skip\">\u2013</a>"));
}

TEST(Html, SaysWhichWaysWereTaken) {
  reports::Run run = run_of({Status::pass});
  run.suites[0].cases[0].facts = Json{
      {"routes",
       Json::array({{{"op", "attend"}, {"backend", "cuda"}, {"variant", "in_one"}, {"why", "a < b"}, {"calls", 2}}})}};
  const std::string text = to_html(run);
  EXPECT_THAT(text, HasSubstr("<h2 id=\"ways\">Ways taken</h2>"));
  EXPECT_THAT(text, HasSubstr("in 1 case"));
  EXPECT_THAT(unbalanced(text), IsEmpty());
}

TEST(Html, EveryLinkLeadsSomewhereAndNoAnchorStandsTwice) {
  const std::string text = to_html(sample::mixed());
  std::set<std::string> ids;
  static const std::regex kId(" id=\"([^\"]*)\""), kLink("href=\"#([^\"]*)\"");
  for (std::sregex_iterator it(text.begin(), text.end(), kId), end; it != end; ++it)
    EXPECT_TRUE(ids.insert((*it)[1]).second) << (*it)[1];
  std::size_t links = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), kLink), end; it != end; ++it, ++links)
    EXPECT_TRUE(ids.contains((*it)[1])) << (*it)[1];
  EXPECT_GT(links, 10u);
}

TEST(Html, FindingsComeBeforeWhatIsLookedUp) {
  const std::string text = to_html(sample::mixed());
  std::size_t last = 0;
  for (const char* title : {">Findings<", ">Next steps</h2>", ">Suites</h2>", ">Cases</h2>", ">Environment</h2>"}) {
    const std::size_t at = text.find(title, last);
    ASSERT_NE(at, std::string::npos) << title;
    last = at;
  }
}

TEST(Html, HostileTextStaysText) {
  const std::string evil = "</div><script>alert('x')</script>\"& \x01";
  reports::Run run = run_of({Status::fail});
  run.id = evil;
  run.device = evil;
  run.faults = Json::array({evil});
  run.provenance = Json{{evil, evil}, {"flags", {{evil, evil}}}};
  Suite& suite = run.suites[0];
  suite.name = suite.purpose = evil;
  Case& c = suite.cases[0];
  c.id = c.hash = c.reason = c.repro = evil;
  c.checks = {{evil, false, evil, evil, evil, evil}};
  c.metrics = {{evil, evil, evil}};
  c.facts = Json{{evil, evil}};
  c.artifacts = {evil};
  c.findings = {{evil, Severity::block, evil, evil, evil, evil, evil, evil, Json{{evil, evil}}}};
  const std::string text = to_html(run);
  EXPECT_THAT(text, Not(HasSubstr("<script>")));
  EXPECT_THAT(text, Not(HasSubstr("\x01")));
  EXPECT_THAT(unbalanced(text), IsEmpty());
}

TEST(Html, Banners) {
  reports::Run run = run_of({Status::pass});
  run.complete = false;
  run.interruption = ExitCode::terminated;
  EXPECT_THAT(to_html(run), HasSubstr("Incomplete run"));
  EXPECT_THAT(to_html(run), HasSubstr("exit code 143"));
}

}  // namespace
}  // namespace reports
