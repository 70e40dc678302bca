// sdpa/select.cpp: importance and the choice of blocks.
#include <cmath>

#include "nsa/sdpa/sdpa.hpp"
#include "nsa/tests/fixtures.hpp"

namespace nsa::sdpa {
namespace {

using fixtures::cu;
using fixtures::Inputs;
using fixtures::kHeads;
using fixtures::kLengths;
using fixtures::random;

TEST(SdpaSelect, EqualsTheOracleInFp64) {
  for (const auto S : kLengths)
    for (const auto& [G, h] : kHeads) {
      const Inputs in({.B = 2, .S = S, .G = G, .h = h}, static_cast<std::uint64_t>(100 + S));
      const auto kv = compress(in.compress());
      EXPECT_TRUE(at::equal(select(in.select(kv)), reference::select(in.select(kv)))) << S << " " << G << " " << h;
    }
  Inputs packed({.S = 200, .G = 2, .h = 2}, 5);
  packed.cu_seqlens = cu({0, 0, 3, 4, 90, 200});
  const auto kv = compress(packed.compress());
  EXPECT_TRUE(at::equal(select(packed.select(kv)), reference::select(packed.select(kv))));
}

TEST(SdpaSelect, DiffersInFp32OnlyWhereScoresTie) {
  const Inputs in({.S = 400, .G = 2, .h = 3}, 47, at::kFloat, {4, 2, 8, 6, 6});
  const auto kv = compress(in.compress());
  const Inputs wide = in.wide();
  const auto k_cmp = kv.k.to(at::kDouble);
  const auto score = reference::importance(reference::compressed_probabilities(wide.q, k_cmp, in.g), in.g, 2, 400);
  const auto total = [&](const at::Tensor& blocks) {
    const auto index = blocks.to(at::kLong);
    return score.gather(3, index.clamp_min(0)).masked_fill(index.lt(0), 0.0).sum(3);
  };
  const auto own = select(in.select(kv)), wanted = reference::select({wide.q, k_cmp, in.g, {}});
  EXPECT_TRUE(at::equal(own.ge(0).sum(3), wanted.ge(0).sum(3)));
  EXPECT_LE((total(own) - total(wanted)).abs().max().item<double>(), 1e-5);
}

TEST(SdpaSelect, TiesGoToTheLowerNumber) {
  // Equal keys: every block but the first and the last visible ones scores the same to the bit.
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto q = random({1, 96, 2, 8}, 53, type);
    const auto blocks = select({q, at::ones({1, 47, 1, 8}, type), {4, 2, 8, 5, 6}, {}});
    EXPECT_TRUE(at::equal(blocks[0][95][0], at::tensor({0, 1, 2, 10, 11}, at::kInt))) << blocks[0][95][0];
  }
}

TEST(SdpaSelect, NaNNeverDisplacesAForcedBlock) {
  const auto q = at::full({1, 60, 1, 8}, std::nan(""), at::kFloat);
  const auto blocks = select({q, at::ones({1, 29, 1, 8}, at::kFloat), {4, 2, 8, 4, 6}, {}});
  const auto last = blocks[0][59][0];  // current 7, previous 6, first 0, and one more
  EXPECT_EQ(last[0].item<int>(), 0);
  EXPECT_EQ(last[2].item<int>(), 6);
  EXPECT_EQ(last[3].item<int>(), 7);
}

}  // namespace
}  // namespace nsa::sdpa
