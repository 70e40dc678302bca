#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nsa/bench/bench.hpp"
#include "nsa/bench/options.hpp"

namespace nsa::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::optional<Options> parse(std::vector<const char*> words) {
  words.insert(words.begin(), "nsa-bench");
  return parse_options(static_cast<int>(words.size()), words.data());
}

std::string refusal_of(const std::vector<const char*>& words) {
  try {
    (void)parse(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(BenchOptions, ListsAreCutAtCommas) {
  const auto options = parse({"--config", "a,c", "--length=2048,65536", "--backend", "cuda", "--choice", "drift"});
  ASSERT_TRUE(options);
  EXPECT_THAT(options->configs, ElementsAre("a", "c"));
  EXPECT_THAT(options->lengths, ElementsAre(2048, 65536));
  EXPECT_THAT(options->backends, ElementsAre(Backend::cuda));
  EXPECT_THAT(options->choices, ElementsAre(ChoiceKind::drift));
  EXPECT_FALSE(options->list_only);
}

TEST(BenchOptions, GoogleBenchmarksOptionsAreHandedOn) {
  const auto options = parse({"--benchmark_filter=^nsa/", "--config", "b", "--benchmark_list_tests"});
  ASSERT_TRUE(options);
  EXPECT_THAT(options->benchmark_arguments, ElementsAre("--benchmark_filter=^nsa/", "--benchmark_list_tests"));
  EXPECT_TRUE(options->list_only);
  EXPECT_FALSE(parse({"--benchmark_list_tests=false"})->list_only);
}

TEST(BenchOptions, DefaultsAreEverything) {
  const auto options = parse({});
  if (!options) FAIL();
  EXPECT_THAT(options->configs, ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(options->lengths.size(), 6U);
  EXPECT_THAT(options->backends, ElementsAre(Backend::cuda, Backend::sdpa, Backend::flash));
  EXPECT_EQ(options->choices.size(), 2U);
  EXPECT_FALSE(options->peak_flops || options->peak_bytes);  // the GPU's own
}

// A roofline of another GPU says nothing: what is not known is left out, or given whole.
TEST(BenchOptions, PeaksAreThoseOfTheGpu) {
  Machine h200, h100;
  h200.gpu = "NVIDIA H200";
  h100.gpu = "NVIDIA H100 80GB HBM3";
  const auto plain = parse({}), said = parse({"--peak-flops", "1e15", "--peak-bytes", "3e12"});
  ASSERT_TRUE(plain && said);
  EXPECT_EQ(peaks_of(*plain, h200)->flops_per_s, 790e12);
  EXPECT_FALSE(peaks_of(*plain, h100));
  EXPECT_EQ(peaks_of(*said, h100)->bytes_per_s, 3e12);
  EXPECT_EQ(peaks_of(*said, h200)->flops_per_s, 1e15);
  EXPECT_THAT(refusal_of({"--peak-flops", "1e15"}), HasSubstr("--peak-bytes"));
}

TEST(BenchOptions, MistakesNameTheOption) {
  EXPECT_THAT(refusal_of({"--config", "e"}), HasSubstr("--config"));
  EXPECT_THAT(refusal_of({"--backend", "triton"}), HasSubstr("--backend"));
  EXPECT_THAT(refusal_of({"--length", "0"}), HasSubstr("--length"));
  EXPECT_THAT(refusal_of({"--choice=best"}), HasSubstr("--choice"));
  EXPECT_THAT(refusal_of({"--peers", "no/such/file"}), HasSubstr("--peers"));
  EXPECT_THAT(refusal_of({"--peak-bytes", "-1"}), HasSubstr("--peak-bytes"));
  EXPECT_THAT(refusal_of({"--lengths", "64"}), HasSubstr("'--lengths' is not an option"));
  EXPECT_THAT(refusal_of({"nsa"}), HasSubstr("'nsa' is not an option"));
}

}  // namespace
}  // namespace nsa::bench
