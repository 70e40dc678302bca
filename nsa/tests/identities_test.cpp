// The identities of nsa/README.md: properties that need no oracle, for every backend that runs here.
#include <cmath>

#include "nsa/sdpa/sdpa.hpp"
#include "nsa/tests/fixtures.hpp"

namespace nsa {
namespace {

using fixtures::cu;
using fixtures::distance;
using fixtures::Inputs;
using fixtures::kSmall;
using fixtures::random;

struct Way {
  const char* name;
  Ops ops;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class Identities : public ::testing::TestWithParam<Way> {
 protected:
  const Ops& ops = GetParam().ops;
  const at::NoGradGuard no_grad;
  struct All {
    Compressed kv;
    at::Tensor blocks, cmp, sel, win, o;
  };
  [[nodiscard]] All run(const Inputs& in) const {
    All all;
    all.kv = ops.compress(in.compress());
    all.blocks = ops.select(in.select(all.kv));
    all.cmp = ops.attend_compressed(in.compressed(all.kv)).o;
    all.sel = ops.attend_selected(in.selected(all.blocks)).o;
    all.win = ops.attend_window(in.window()).o;
    all.o = ops.combine({in.gates, all.cmp, all.sel, all.win});
    return all;
  }
};

// Full causal attention, written down once more: row by row.
at::Tensor full_causal(const Inputs& in) {
  const std::int64_t S = in.q.size(1), h = in.q.size(2) / in.k.size(2);
  auto o = at::empty({in.q.size(0), S, in.q.size(2), in.v.size(3)}, in.q.options());
  for (std::int64_t head = 0; head < in.q.size(2); ++head)
    for (std::int64_t t = 0; t < S; ++t) {
      const auto k = in.k.select(2, head / h).narrow(1, 0, t + 1), v = in.v.select(2, head / h).narrow(1, 0, t + 1);
      const auto p = at::softmax(
          at::matmul(k, in.q.select(2, head).select(1, t).unsqueeze(2)).squeeze(2) / std::sqrt(in.q.size(3)), 1);
      o.select(2, head).select(1, t).copy_(at::matmul(p.unsqueeze(1), v).squeeze(1));
    }
  return o;
}

TEST_P(Identities, EveryBlockChosenIsFullCausalAttention) {
  for (const std::int64_t S : {1, 7, 8, 9, 23, 24}) {
    const Inputs in({.B = 2, .S = S, .G = 2, .h = 2}, 1);
    EXPECT_LE(distance(run(in).sel, full_causal(in)), 1e-12) << S;
  }
}

TEST_P(Identities, AWindowOfEverythingIsFullCausalAttention) {
  for (const std::int64_t w : {30, 31, 1000}) {
    const Inputs in({.B = 2, .S = 30, .G = 2, .h = 2}, 2, at::kDouble, {4, 2, 8, 3, w});
    EXPECT_LE(distance(run(in).win, full_causal(in)), 1e-12) << w;
  }
}

TEST_P(Identities, AOneHotGateIsThatBranch) {
  Inputs in({.B = 2, .S = 40, .G = 2, .h = 2}, 3);
  for (std::int64_t branch = 0; branch < 3; ++branch) {
    in.gates.zero_();
    in.gates.select(3, branch).fill_(1.0);
    const auto all = run(in);
    EXPECT_TRUE(at::equal(all.o, branch == 0 ? all.cmp : branch == 1 ? all.sel : all.win)) << branch;
  }
}

TEST_P(Identities, TheFutureChangesNothingNotEvenABit) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const std::int64_t S : {6, 7, 12, 18, 60}) {  // w, w+1, 2w, 3w, and with a choice to make
      const Inputs in({.B = 1, .S = S, .G = 2, .h = 2}, 4, type);
      const auto before = run(in);
      for (const std::int64_t t : {std::int64_t{0}, S / 2, S - 2}) {
        Inputs changed = in;
        for (auto* x : {&changed.q, &changed.k, &changed.v}) {
          *x = x->clone();
          x->narrow(1, t + 1, S - 1 - t).copy_(random({1, S - 1 - t, x->size(2), 8}, 5, type) * 3.0);
        }
        const auto after = run(changed);
        const auto same = [&](const at::Tensor& a, const at::Tensor& b) {
          return at::equal(a.narrow(1, 0, t + 1), b.narrow(1, 0, t + 1));
        };
        EXPECT_TRUE(same(after.cmp, before.cmp)) << "cmp S " << S << " t " << t;
        EXPECT_TRUE(same(after.blocks, before.blocks)) << "blocks S " << S << " t " << t;
        EXPECT_TRUE(same(after.sel, before.sel)) << "sel S " << S << " t " << t;
        EXPECT_TRUE(same(after.win, before.win)) << "win S " << S << " t " << t;
      }
    }
}

TEST_P(Identities, ABatchOfTwoIsTwoBatchesOfOne) {
  const Inputs both({.B = 2, .S = 50, .G = 2, .h = 3, .Dv = 4}, 6);
  const auto all = run(both);
  for (std::int64_t b = 0; b < 2; ++b) {
    Inputs one = both;
    for (auto* x : {&one.q, &one.k, &one.v, &one.gates}) *x = x->narrow(0, b, 1);
    const auto own = run(one);
    EXPECT_TRUE(at::equal(all.blocks.narrow(0, b, 1), own.blocks));
    EXPECT_LE(distance(all.o.narrow(0, b, 1), own.o), 1e-12);
  }
}

TEST_P(Identities, PermutingTheHeadsOfAGroupPermutesTheOutput) {
  const Inputs in({.B = 1, .S = 50, .G = 2, .h = 3}, 7);
  const auto order = at::tensor({2, 0, 1, 3, 5, 4}, at::kLong);
  Inputs permuted = in;
  permuted.q = in.q.index_select(2, order);
  EXPECT_LE(distance(run(permuted).o, run(in).o.index_select(2, order)), 1e-12);
}

TEST_P(Identities, ScalingVScalesO) {
  const Inputs in({.B = 1, .S = 50, .G = 2, .h = 2}, 8);
  Inputs scaled = in;
  scaled.v = in.v * 4.0;  // a power of two: exact
  EXPECT_LE(distance(run(scaled).o, run(in).o * 4.0), 1e-13);
}

TEST_P(Identities, APackedBatchIsItsDocuments) {
  Inputs packed({.S = 100, .G = 2, .h = 2}, 9);
  packed.cu_seqlens = cu({0, 0, 1, 3, 7, 7, 50, 100});
  const auto all = run(packed);
  for (const auto& [begin, end] : documents(packed.cu_seqlens, 100)) {
    if (begin == end) continue;
    Inputs one = packed;
    one.cu_seqlens.reset();
    for (auto* x : {&one.q, &one.k, &one.v, &one.gates}) *x = x->narrow(1, begin, end - begin);
    const auto own = run(one);
    EXPECT_TRUE(at::equal(all.blocks.narrow(1, begin, end - begin), own.blocks)) << begin;
    EXPECT_LE(distance(all.o.narrow(1, begin, end - begin), own.o), 1e-12) << begin;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Identities,
                         ::testing::Values(Way{"reference", reference::ops()},
                                           Way{"packed", sdpa::ops(sdpa::Selection::packed)},
                                           Way{"packed_safe", sdpa::ops(sdpa::Selection::packed_safe)},
                                           Way{"masked", sdpa::ops(sdpa::Selection::masked)}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace nsa
