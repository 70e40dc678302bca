#include "harness/command_line.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using harness::CommandLine;
using harness::UsageError;
using harness::Verb;
using testing::ElementsAre;
using testing::HasSubstr;

CommandLine parse(std::vector<std::string> words) {
  harness::Program program;
  program.name = "prog";
  program.version = "1";
  program.options = {{"--expect", "preflight.expect", "a file"}};
  program.verbs = {{"knit", "knits a scarf"}};
  words.insert(words.begin(), "prog");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return harness::parse_command_line(program, static_cast<int>(words.size()), argv.data());
}

std::string error_of_words(const std::vector<std::string>& words) {
  try {
    (void)parse(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CommandLine, RunIsTheDefaultVerbAndVerbsMayStandAnywhere) {
  EXPECT_EQ(parse({}).verb, Verb::run);
  EXPECT_EQ(parse({"--suite", "smoke"}).verb, Verb::run);
  EXPECT_EQ(parse({"run", "--suite", "smoke"}).verb, Verb::run);
  EXPECT_EQ(parse({"--suite", "smoke", "run"}).verb, Verb::run);
  EXPECT_THAT(parse({"run", "--suite", "smoke"}).suites, ElementsAre("smoke"));
  EXPECT_THAT(parse({"--suite", "smoke", "list"}).suites, ElementsAre("smoke"));
  EXPECT_EQ(parse({"--case", "a", "list"}).verb, Verb::list);
}

TEST(CommandLine, VerbsThatAreAlsoFlags) {
  EXPECT_EQ(parse({"--version"}).verb, Verb::version);
  EXPECT_EQ(parse({"version"}).verb, Verb::version);
  EXPECT_EQ(parse({"--dry-run"}).verb, Verb::dry_run);
  EXPECT_EQ(parse({"dry-run", "--suite", "smoke"}).verb, Verb::dry_run);
  EXPECT_EQ(parse({"--help"}).verb, Verb::help);
  EXPECT_THAT(parse({"--help"}).help, HasSubstr("--suite"));
  EXPECT_THAT(parse({"--help"}).help, HasSubstr("compare"));
}

// main() does it where it is the first word, so that it is seen here where it is not.
TEST(CommandLine, AVerbOfTheProgramIsInTheHelpAndStandsFirst) {
  EXPECT_THAT(parse({"--help"}).help, testing::ContainsRegex("knit +knits a scarf"));
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--quiet", "knit", "--color=never"}, {"run", "knit"}, {"--quiet", "knit", "3"}})
    EXPECT_THAT(error_of_words(words), HasSubstr("prog knit"));
  EXPECT_THAT(error_of_words({"knitt"}), HasSubstr("did you mean 'knit'?"));
}

TEST(CommandLine, RepeatableOptionsKeepTheirOrder) {
  const CommandLine line = parse({"--suite", "a,b", "--suite", "c", "--case", "x", "--case", "y[a=1,b=2]", "--inject",
                                  "f", "--inject", "g", "--config", "1.yaml", "--config", "2.yaml"});
  EXPECT_THAT(line.suites, ElementsAre("a", "b", "c"));
  EXPECT_THAT(line.cases, ElementsAre("x", "y[a=1,b=2]"));
  EXPECT_THAT(line.inject, ElementsAre("f", "g"));
  EXPECT_THAT(line.config_files, ElementsAre("1.yaml", "2.yaml"));
}

TEST(CommandLine, SugarIsASettingWithItsFlagAsOrigin) {
  const CommandLine line = parse({"--hang", "5", "--set", "a.b=c=d", "--expect", "f.yaml", "--gates", "report"});
  ASSERT_EQ(line.overrides.size(), 4U);
  EXPECT_EQ(line.overrides[0].key, "a.b");
  EXPECT_EQ(line.overrides[0].value, "c=d");
  EXPECT_EQ(line.overrides[1].key, "run.hang_s");
  EXPECT_EQ(line.overrides[1].origin, "--hang");
  EXPECT_EQ(line.overrides[3].key, "preflight.expect");
  EXPECT_EQ(line.overrides[3].value, "f.yaml");
}

TEST(CommandLine, ErrorsNameTheWordAndTheNearestOne) {
  EXPECT_THAT(error_of_words({"--suit", "smoke"}), HasSubstr("unknown option '--suit'; did you mean '--suite'?"));
  EXPECT_THAT(error_of_words({"--forse=1"}), HasSubstr("did you mean '--force'?"));
  EXPECT_THAT(error_of_words({"lits"}), HasSubstr("unknown verb 'lits'; did you mean 'list'?"));
  EXPECT_THAT(error_of_words({"--color", "pink"}), HasSubstr("--color"));
  EXPECT_THAT(error_of_words({"--set", "novalue"}), HasSubstr("'novalue' is not KEY=VALUE"));
  EXPECT_THAT(error_of_words({"--suite"}), HasSubstr("--suite"));
  EXPECT_THAT(error_of_words({"explain"}), HasSubstr("CODE"));
  EXPECT_THAT(error_of_words({"run", "run"}), HasSubstr("the verb is 'run' already; 'run' after it has no meaning"));
  EXPECT_THAT(error_of_words({"run", "list"}), HasSubstr("the verb is 'run' already; 'list' after it has no meaning"));
  EXPECT_THAT(error_of_words({"--out", "", "--dry-run"}), HasSubstr("--out: '' names no folder"));
  EXPECT_THAT(error_of_words({"report", "dir", "--suite", "smoke"}),
              HasSubstr("'--suite' has no meaning for the verb 'report'"));
}

TEST(CommandLine, AFlagTakesNoValue) {
  for (const char* word : {"--fail-fast=3", "--fail-fast=false", "--require-cuda=0", "--quiet=no", "--force=2"})
    EXPECT_THAT(error_of_words({word}),
                HasSubstr(std::string(word).substr(0, std::string(word).find('=')) + " takes no value"))
        << word;
  EXPECT_THAT(error_of_words({"list", "--json=0"}), HasSubstr("--json takes no value"));
  EXPECT_TRUE(parse({"--fail-fast"}).fail_fast);
  EXPECT_FALSE(parse({}).fail_fast);
}

TEST(CommandLine, OperandsOfVerbs) {
  EXPECT_THAT(parse({"report", "a", "b"}).operands, ElementsAre("a", "b"));
  EXPECT_THAT(parse({"compare", "a", "b", "c", "--json"}).operands, ElementsAre("a", "b", "c"));
  EXPECT_TRUE(parse({"compare", "a", "b", "--json"}).json);
  EXPECT_THAT(parse({"schema"}).operands, ElementsAre());
  EXPECT_THAT(parse({"schema", "event"}).operands, ElementsAre("event"));
  EXPECT_THAT(parse({"explain", "NSA-X001"}).operands, ElementsAre("NSA-X001"));
  EXPECT_TRUE(parse({"list", "--faults", "--json"}).list_faults);
}

}  // namespace
