#include "nsa/train/stream.hpp"

#include <ATen/ops/bincount.h>
#include <gmock/gmock.h>

#include <limits>

#include "nsa/tests/data_fixtures.hpp"

namespace nsa::train {
namespace {

using fixtures::drain;
using fixtures::expect_resumable;
using fixtures::rows_of;
using fixtures::thrown;
using testing::HasSubstr;

StreamOptions synthetic(std::int64_t B = 2, std::int64_t S = 16) {
  StreamOptions options;
  options.data = "synthetic";
  options.batch_size = B;
  options.seq_len = S;
  return options;
}

TEST(Stream, AllMistakesInTheOptionsAreToldAtOnce) {
  StreamOptions options;
  options.data = "some.jsonl";
  options.batch_size = 0;
  options.seq_len = 0;
  options.split = Split::validation;
  options.packed = true;
  options.order = Order::random_crops;
  options.max_line_bytes = 0;
  options.vocab = 0;
  const auto what = thrown<std::invalid_argument>([&] { (void)open_stream(options); });
  for (const char* part :
       {"batch_size is 0; allowed: from 1", "seq_len is 0; allowed: 1 to 1073741824",
        "the validation split needs one above 0", "packed batches have one row",
        "some.jsonl is JSONL, which is read in sequence or shuffled", "max_line_bytes is 0", "vocab is 0"})
    EXPECT_THAT(what, HasSubstr(part));
}

TEST(Stream, OptionsThatMakeNoSense) {
  const auto refusal = [](const auto& change) {
    StreamOptions options = synthetic();
    change(options);
    return thrown<std::invalid_argument>([&] { (void)open_stream(options); });
  };
  for (const double share : {-0.1, 1.0, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THAT(refusal([&](StreamOptions& o) { o.validation_share = share; }), HasSubstr("allowed: from 0, below 1"));
  EXPECT_THAT(refusal([](StreamOptions& o) { o.packed = true; }), HasSubstr("synthetic tokens have no documents"));
  EXPECT_THAT(refusal([](StreamOptions& o) { o.data = ""; }), HasSubstr("data is empty"));
}

TEST(Stream, SyntheticTokensAreUniform) {
  auto options = synthetic(4, 4095);
  options.vocab = 10;
  const auto tokens = open_stream(options)->next().tokens;
  ASSERT_EQ(tokens.sizes(), (at::IntArrayRef{4, 4096}));
  const auto counts = at::bincount(tokens.flatten(), {}, 10);
  ASSERT_EQ(counts.numel(), 10);
  // 1638 expected each, standard deviation 38; the seed is fixed.
  EXPECT_LT(counts.sub(1638).abs().max().item<std::int64_t>(), 200);
}

TEST(Stream, SyntheticTokensDependOnSeedAndSplitAlone) {
  const auto first = [](StreamOptions options) { return open_stream(options)->next().tokens; };
  auto other_seed = synthetic(), validation = synthetic();
  other_seed.seed = 1338;
  validation.split = Split::validation;
  EXPECT_TRUE(at::equal(first(synthetic()), first(synthetic())));
  EXPECT_FALSE(at::equal(first(synthetic()), first(other_seed)));
  EXPECT_FALSE(at::equal(first(synthetic()), first(validation)));
  EXPECT_EQ(rows_of(drain(*open_stream(synthetic(1)), 12)), rows_of(drain(*open_stream(synthetic(4)), 3)));
}

TEST(Stream, SyntheticGoesOnAtEveryPosition) {
  expect_resumable([] { return open_stream(synthetic()); }, 8);
  const auto stream = open_stream(synthetic());
  auto position = stream->position();
  position["seed"] = 1;
  position["vocab"] = 100;
  EXPECT_EQ(thrown<std::invalid_argument>([&] { stream->seek(position); }),
            "data position: seed is 1, here it is 1337; vocab is 100, here it is 256");
}

}  // namespace
}  // namespace nsa::train
