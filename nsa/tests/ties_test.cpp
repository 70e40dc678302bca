// Blocks whose scores are the same numbers: the lower ones are chosen, by whatever chooses.
#include "nsa/tests/ties.hpp"

#include "nsa/decode/decoder.hpp"
#include "nsa/tests/model_fixtures.hpp"

namespace nsa {
namespace {

using fixtures::random;
using fixtures::Ties;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16};

void expect_low(Backend backend) {
  for (const at::ScalarType type : kTypes)
    for (const Ties& x : fixtures::ties(type))
      EXPECT_EQ(x.wrong_rows(backend_ops(backend).select(x.args())), 0) << x.name();
}

TEST(Ties, ReferenceTakesTheLowerNumbers) { expect_low(Backend::reference); }
TEST(Ties, SdpaTakesTheLowerNumbers) { expect_low(Backend::sdpa); }

// Equal keys of any numbers: a product of all keys at once rounds them by their place, in fp64 with these shapes.
TEST(Ties, ReferenceGivesEqualKeysEqualBits) {
  for (const std::int64_t D : {64, 128}) {
    const Geometry g{.l = 32, .d = 16, .l_sel = 64, .n_sel = 4, .w = 512};
    const std::int64_t S = 1300, N_c = compressed_blocks(g, S);
    const auto key = random({1, 1, 1, D}, 2).expand({1, N_c, 1, D});
    const auto p = reference::compressed_probabilities(random({1, S, 4, D}, 1), key, g).select(2, S - 1);
    EXPECT_TRUE(at::equal(p, p.narrow(2, 0, 1).expand_as(p))) << D;
  }
}

TEST(Ties, AStepChoosesAsThePassDoes) {
  for (const at::ScalarType type : kTypes)
    for (const Ties& x : fixtures::ties(type)) {
      const SelectArgs args = x.args();
      const auto whole = backend_ops(Backend::sdpa).select(args);
      for (const std::int64_t t : {x.S - 1, x.S - x.g.l_sel}) {
        const auto k = args.k_cmp.narrow(1, 0, compressed_blocks(x.g, t + 1)).transpose(1, 2);
        const auto step = decode::step_ops().select({args.q.narrow(1, t, 1), k, t, 1, x.g});
        EXPECT_TRUE(at::equal(step, whole.narrow(1, t, 1))) << x.name() << " t " << t;
      }
    }
}

// A model whose queries are all zero: every choice is a tie.
TEST(Ties, DecodingFollowsTheForwardPass) {
  const torch::NoGradGuard no_grad;
  auto config = fixtures::tiny();
  config.n_layers = 1;
  config.nsa = {.l = 8, .d = 2, .l_sel = 16, .n_sel = 5, .w = 16};
  config.n_heads = 10;
  const auto tokens = fixtures::bytes({1, 400}, 1);
  for (const Environment& environment : {Environment{}, Environment{{"NSA_FORCE_PARITY", "1"}}}) {
    auto model = fixtures::make_model(config, environment);
    for (auto& parameter : model->named_parameters())
      if (parameter.key().ends_with("attention.q.weight")) parameter.value().zero_();
    decode::Decoder decoder(model);
    const auto logits =
        at::cat({decoder.prefill(tokens.narrow(1, 0, 360)), decoder.sequential(tokens.narrow(1, 360, 40))}, 1);
    EXPECT_LE(fixtures::distance(logits, model(tokens)), 1e-5) << environment.size();
  }
}

}  // namespace
}  // namespace nsa
