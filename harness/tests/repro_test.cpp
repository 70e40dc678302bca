#include "harness/repro.hpp"

#include <gtest/gtest.h>

#include "harness/process.hpp"
#include "harness/protocol.hpp"

namespace {

using harness::repro_command;
using harness::shell_quote;

TEST(Repro, RepeatsEverythingThatIsNotTheDefault) {
  harness::Settings settings(harness::all_setting_specs({}));
  EXPECT_EQ(repro_command({"prog", {}, "", {}}, settings, "s/c"), "prog --case s/c --seed 42");
  settings.set("run.seed", "7", "--seed");
  settings.set("run.hang_s", "5", "ci.yaml:1");
  settings.set("run.gates", "report", "--gates");
  EXPECT_EQ(repro_command({"prog", {{"NSA_FLAG", "1"}}, "cpu", {"a", "b"}}, settings, "s/c[S=1,d=x]"),
            "NSA_FLAG=1 prog --case 's/c[S=1,d=x]' --seed 7 --device cpu --inject a --inject b --set run.gates=report "
            "--set run.hang_s=5");
}

TEST(Repro, AShellReadsQuotedWordsAsTheyWere) {
  for (const std::string word : {"plain", "with space", "it's", "$HOME `ls` \\ \"", "*?[a]", "", "a\nb"}) {
    EXPECT_EQ(harness::output_of({"sh", "-c", "printf %s " + shell_quote(word)}, 10), word);
  }
  EXPECT_EQ(shell_quote("a/b-c_d.e=f:g,h"), "a/b-c_d.e=f:g,h");
}

}  // namespace
