#include "suites/machine/variables.hpp"

#include <gtest/gtest.h>

#include "harness/settings.hpp"
#include "suites/codes.hpp"

namespace suites::machine {
namespace {

// The failures of an inspection, and that all of them raise `code`.
std::string failures(const Inspection& inspection, std::string_view code) {
  std::string text;
  for (const Judgement& j : inspection.judgements) {
    if (j.holds) continue;
    EXPECT_EQ(j.code, code);
    text += j.what_failed + "\n";
  }
  return text;
}
bool says(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

TEST(Variables, NothingSetIsSoundAndStillChecked) {
  const Inspection found = judge_variables({});
  EXPECT_TRUE(found.sound());
  EXPECT_GT(found.judgements.size(), 3U);
}

TEST(Variables, DebuggingAidsThatAreStillOnAreFound) {
  const std::string text = failures(
      judge_variables(
          {{"CUDA_LAUNCH_BLOCKING", "1"}, {"PYTORCH_NO_CUDA_MEMORY_CACHING", "1"}, {"NVIDIA_TF32_OVERRIDE", "0"}}),
      codes::kHarmfulVariable);
  EXPECT_TRUE(says(text, "CUDA_LAUNCH_BLOCKING=1"));
  EXPECT_TRUE(says(text, "PYTORCH_NO_CUDA_MEMORY_CACHING=1"));
  EXPECT_FALSE(says(text, "TF32"));
}

TEST(Variables, MisspeltAllocatorKeyIsFoundWithTheNearestOne) {
  const std::string text =
      failures(judge_variables({{"PYTORCH_CUDA_ALLOC_CONF", "expandable_segment:True,max_split_size_mb:128"}}),
               codes::kHarmfulVariable);
  EXPECT_TRUE(says(text, "'expandable_segment' (did you mean expandable_segments?)")) << text;
}

TEST(Allocator, ReadsWhatTorchReads) {
  const AllocatorSettings s =
      allocator_settings({{"PYTORCH_CUDA_ALLOC_CONF",
                           "expandable_segments:True, roundup_power2_divisions:[256:1,512:2,>:4],backend:native"},
                          {"PYTORCH_ALLOC_CONF", "expandable_segments:False"}});
  EXPECT_EQ(s.variable, "PYTORCH_CUDA_ALLOC_CONF");
  EXPECT_TRUE(s.expandable_segments());
  EXPECT_EQ(s.known.at("roundup_power2_divisions"), "[256:1,512:2,>:4]");
  EXPECT_TRUE(s.unknown.empty());
  EXPECT_FALSE(allocator_settings({}).expandable_segments());
  EXPECT_TRUE(allocator_settings({{"PYTORCH_ALLOC_CONF", "expandable_segments:True"}}).expandable_segments());
}

TEST(Threads, MoreThanCoresAndNonsenseAreFound) {
  EXPECT_TRUE(judge_threads({{"OMP_NUM_THREADS", "4"}}, 4, 4).sound());
  EXPECT_TRUE(says(failures(judge_threads({{"OMP_NUM_THREADS", "64"}}, 4, 4), codes::kThreadSettings),
                   "OMP_NUM_THREADS=64, and 4 core(s)"));
  EXPECT_FALSE(judge_threads({{"MKL_NUM_THREADS", "0"}}, 4, 4).sound());
  EXPECT_FALSE(judge_threads({{"OMP_NUM_THREADS", "many"}}, 4, 4).sound());
  EXPECT_TRUE(says(failures(judge_threads({}, 2, 16), codes::kThreadSettings), "16 threads on 2 core(s)"));
}

TEST(Threads, UnknownNumberOfThreadsIsNotJudged) { EXPECT_TRUE(judge_threads({}, 2, 0).judgements.empty()); }

const PinnedFacts kFacts{{{"OMP_NUM_THREADS", "8"}, {"NSA_USE_FA2", "1"}},
                         {"OMP_NUM_THREADS", "CUDA_LAUNCH_BLOCKING"},
                         {{"fa2_win", "true"}, {"sel_mask", "false"}}};

TEST(Pins, ThatHoldAreSilent) {
  EXPECT_TRUE(
      judge_pins({"OMP_NUM_THREADS=8", "NSA_USE_FA2=1", "CUDA_LAUNCH_BLOCKING=", "fa2_win=true"}, kFacts).sound());
}

TEST(Pins, EveryDifferenceIsListed) {
  const Inspection found =
      judge_pins({"OMP_NUM_THREADS=4", "NSA_FORCE_SEL_MASK=1", "sel_mask=true", "fa2_win=true"}, kFacts);
  const std::string text = failures(found, codes::kUnexpectedFlags);
  EXPECT_TRUE(says(text, "OMP_NUM_THREADS is 8, expected 4")) << text;
  EXPECT_TRUE(says(text, "NSA_FORCE_SEL_MASK is unset, expected 1")) << text;
  EXPECT_TRUE(says(text, "sel_mask is false, expected true")) << text;
  EXPECT_EQ(found.seen["differences"].size(), 3U);
}

TEST(Pins, ThatNobodyCanJudgeAreRefused) {
  EXPECT_EQ(bad_pin("fa2_win=true", kFacts), "");
  EXPECT_TRUE(says(bad_pin("fa2_wim=true", kFacts), "did you mean fa2_win?"));
  EXPECT_TRUE(says(bad_pin("NSA_USE_FA=1", kFacts), "did you mean NSA_USE_FA2?"));
  EXPECT_TRUE(says(bad_pin("HOME=/root", kFacts), "'HOME' cannot be pinned")) << "it is not recorded";
  EXPECT_TRUE(says(bad_pin("fa2_win", kFacts), "is not NAME=value"));
  EXPECT_THROW((void)judge_pins({"=1"}, kFacts), harness::UsageError);
}

TEST(Pins, FactsComeFromProvenanceAndFlags) {
  const PinnedFacts facts = pinned_facts({{"environment", {{"OMP_NUM_THREADS", "2"}}}}, {{"NSA_USE_FA2", "1"}});
  EXPECT_EQ(facts.variables.at("OMP_NUM_THREADS"), "2");
  EXPECT_EQ(facts.variables.at("NSA_USE_FA2"), "1");
  EXPECT_EQ(facts.fields.at("fa2_cmp"), "true");
  EXPECT_EQ(bad_pin("PYTORCH_CUDA_ALLOC_CONF=", facts), "");
}

}  // namespace
}  // namespace suites::machine
