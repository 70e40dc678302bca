#include "suites/machine/build.hpp"

#include <gtest/gtest.h>

#include <map>

#include "suites/codes.hpp"

namespace suites::machine {
namespace {

const Json kFresh = {{"build_id", "aaaa"}, {"source_hash", "aaaa"}};
const Json kStale = {{"build_id", "aaaa"}, {"source_hash", "bbbb"}};

std::string failed(const Inspection& inspection) {
  std::string text;
  for (const Judgement& j : inspection.judgements)
    if (!j.holds) text += j.what_failed + "\n";
  return text;
}

TEST(Build, FreshStaleAndUnknown) {
  EXPECT_TRUE(judge_build(kFresh).sound());
  EXPECT_FALSE(judge_build(kStale).sound());
  EXPECT_EQ(judge_build(kStale).judgements[0].code, codes::kBuildStale);
  const Inspection unknown = judge_build({{"build_id", "aaaa"}, {"source_hash", nullptr}});
  EXPECT_TRUE(unknown.cannot_tell) << "nothing to compare with is not a pass";
  EXPECT_TRUE(unknown.judgements.empty());
}

// A checkout at "head0" whose history is head0 - fix1.
Git made_up_git() {
  return [](const std::vector<std::string>& words) -> std::optional<std::string> {
    const std::map<std::string, std::string> known = {
        {"HEAD", "head0"}, {"fix1^{commit}", "fix1"}, {"later^{commit}", "later"}};
    if (words[0] == "rev-parse") {
      const auto found = known.find(words.back());
      return found == known.end() ? std::nullopt : std::optional(found->second + "\n");
    }
    return words[1] == "fix1" ? "fix1\n" : "root\n";  // merge-base
  };
}

TEST(Fix, ContainedAndBuiltIsSound) {
  const Inspection found = judge_fix("fix1", kFresh, made_up_git());
  EXPECT_TRUE(found.sound()) << failed(found);
  EXPECT_EQ(found.judgements.size(), 4U);
}

TEST(Fix, ACheckoutWithoutTheCommitIsFound) {
  EXPECT_NE(failed(judge_fix("later", kFresh, made_up_git())).find("does not contain commit later"), std::string::npos);
  EXPECT_NE(failed(judge_fix("unheard-of", kFresh, made_up_git())).find("does not know commit unheard-of"),
            std::string::npos);
  EXPECT_EQ(judge_fix("later", kFresh, made_up_git()).judgements.back().code, codes::kFixMissing);
}

TEST(Fix, ABinaryThatWasNotBuiltAgainIsFound) {
  EXPECT_NE(failed(judge_fix("fix1", kStale, made_up_git())).find("may not be in the binary"), std::string::npos);
}

TEST(Fix, NoCheckoutIsNoPass) {
  const Git none = [](const auto&) { return std::nullopt; };
  EXPECT_NE(failed(judge_fix("fix1", kFresh, none)).find("no git checkout"), std::string::npos);
}

TEST(Fix, GitOfNoCheckoutTellsNothing) {
  EXPECT_FALSE(git_in("/proc")({"rev-parse", "--verify", "--quiet", "HEAD"}).has_value());
}

}  // namespace
}  // namespace suites::machine
