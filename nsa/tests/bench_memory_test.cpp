// What the whole of attention holds at most, forward and backward, as the sequence grows. Needs a GPU: only
// its allocator counts.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "nsa/bench/call.hpp"
#include "nsa/bench/timing.hpp"

namespace nsa::bench {
namespace {

// Slope of log(bytes) over log(S), by least squares.
double exponent(const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& bytes) {
  double x = 0, y = 0, xx = 0, xy = 0;
  const auto n = static_cast<double>(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const double a = std::log(static_cast<double>(lengths[i])), b = std::log(static_cast<double>(bytes[i]));
    x += a, y += b, xx += a * a, xy += a * b;
  }
  return (n * xy - x * y) / (n * xx - x * x);
}

TEST(BenchMemory, TheExponentIsTheSlope) {
  EXPECT_NEAR(exponent({1000, 2000, 4000}, {5000, 20000, 80000}), 2.0, 1e-12);
  EXPECT_NEAR(exponent({1000, 2000, 4000}, {5000, 10000, 20000}), 1.0, 1e-12);
}

TEST(BenchMemory, OurKernelsGrowWithTheLengthAndNotFaster) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device: only its allocator counts";
  const auto all = subjects();
  const auto whole = std::find_if(all.begin(), all.end(), [](const Subject& s) { return s.name == "nsa"; });
  ASSERT_NE(whole, all.end());
  const std::vector<std::int64_t> lengths = {8192, 16384, 32768, 65536, 131072};
  for (const std::string config : {"a", "c"}) {
    std::vector<std::int64_t> bytes;
    for (const std::int64_t S : lengths) {
      bytes.push_back(peak_bytes(make_call({*whole, problem(config, S), Backend::cuda, Mode::fwd_bwd}, at::kCUDA)));
      RecordProperty(config + "_" + std::to_string(S), std::to_string(bytes.back()));
    }
    EXPECT_LE(exponent(lengths, bytes), 1.05) << config;
  }
}

}  // namespace
}  // namespace nsa::bench
