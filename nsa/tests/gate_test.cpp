#include "nsa/model/gate.hpp"

#include <cmath>

#include "nsa/tests/fixtures.hpp"

namespace nsa {
namespace {

using fixtures::distance;
using fixtures::random;

Gate make(std::int64_t d_k, std::int64_t groups, GateActivation activation = GateActivation::softmax,
          double tau = 1.0) {
  torch::manual_seed(1);
  Gate gate(d_k, groups, activation, tau);
  gate->to(torch::kDouble);
  return gate;
}

TEST(Gate, ByHand) {
  // Dk = 2, so one hidden unit; two heads of one group with mean (1, 2).
  auto gate = make(2, 1);
  const torch::NoGradGuard no_grad;
  gate->fc1->weight.copy_(torch::tensor({{3.0, -1.0}}));
  gate->fc1->bias.fill_(0.5);
  gate->fc2->weight.copy_(torch::tensor({{1.0}, {0.0}, {-1.0}}));
  gate->fc2->bias.copy_(torch::tensor({0.0, 0.25, 0.0}));
  const auto q = torch::tensor({0.0, 1.0, 2.0, 3.0}, torch::kDouble).view({1, 1, 2, 2});
  const double hidden = 1.5 / (1 + std::exp(-1.5));
  const auto logits = torch::tensor({hidden, 0.25, -hidden}, torch::kDouble);
  EXPECT_LE(distance(gate(q, EffectiveFlags{})[0][0][0], torch::softmax(logits, 0)), 1e-12);

  auto cold = make(2, 1, GateActivation::softmax, 0.5), open = make(2, 1, GateActivation::sigmoid);
  for (auto* other : {&cold, &open})
    for (const auto& parameter : (*other)->named_parameters())
      parameter.value().copy_(gate->named_parameters()[parameter.key()]);
  EXPECT_LE(distance(cold(q, EffectiveFlags{})[0][0][0], torch::softmax(logits * 2, 0)), 1e-12);
  EXPECT_LE(distance(open(q, EffectiveFlags{})[0][0][0], torch::sigmoid(logits)), 1e-12);
}

TEST(Gate, OneTripleAGroup) {
  auto gate = make(8, 3);
  const auto q = random({2, 5, 6, 8}, 2);
  const auto gates = gate(q, EffectiveFlags{});
  EXPECT_EQ(gates.sizes(), at::IntArrayRef({2, 5, 3, 3}));
  EXPECT_LE(distance(gates.sum(-1), torch::ones({2, 5, 3}, torch::kDouble)), 1e-12);
  auto changed = q.clone();
  changed.select(2, 4).add_(1.0);  // a head of group 2
  const auto other = gate(changed, EffectiveFlags{});
  EXPECT_TRUE(torch::equal(other.narrow(2, 0, 2), gates.narrow(2, 0, 2)));
  EXPECT_FALSE(torch::equal(other.select(2, 2), gates.select(2, 2)));
  EXPECT_LE(
      distance(gate(q.flip(2).flip(2).index_select(2, torch::tensor({1, 0, 3, 2, 5, 4})), EffectiveFlags{}), gates),
      1e-12);
}

TEST(Gate, Flags) {
  auto gate = make(8, 2);
  const auto q = random({1, 4, 4, 8}, 3).set_requires_grad(true);
  EffectiveFlags flags;
  flags.uniform_gate = true;
  EXPECT_LE(distance(gate(q, flags), torch::full({1, 4, 2, 3}, 1.0 / 3, torch::kDouble)), 1e-12);
  const std::map<ForcedBranch, int> places{{ForcedBranch::cmp, 0}, {ForcedBranch::sel, 1}, {ForcedBranch::win, 2}};
  for (const auto& [branch, place] : places) {
    flags = {};
    flags.forced_branch = branch;
    const auto gates = gate(q, flags);
    EXPECT_TRUE(torch::equal(gates.select(-1, place), torch::ones({1, 4, 2}, torch::kDouble)));
    EXPECT_EQ(gates.sum().item<double>(), 8.0);
  }
  flags = {};
  EXPECT_TRUE(gate(q, flags).requires_grad());
  flags.stopgrad_gates = true;
  EXPECT_FALSE(gate(q, flags).requires_grad());
  EXPECT_TRUE(torch::equal(gate(q, flags), gate(q, EffectiveFlags{})));
}

TEST(Gate, LawsAreKeptAndLetEveryParameterLearn) {
  torch::manual_seed(4);
  Gate gate(64, 2, GateActivation::softmax, 1.0);
  EXPECT_LE(gate->fc1->weight.abs().max().item<double>(), 1.0 / 8);
  EXPECT_LE(gate->fc1->bias.abs().max().item<double>(), 1.0 / 8);
  EXPECT_NEAR(gate->fc1->weight.std().item<double>(), 1.0 / 8 / std::sqrt(3.0), 0.004);
  EXPECT_LE(gate->fc2->weight.abs().max().item<double>(), 0.1 * std::sqrt(6.0 / 35));
  EXPECT_NEAR(gate->fc2->weight.std().item<double>(), 0.0239, 0.2 * 0.0239);
  EXPECT_EQ(gate->fc2->bias.abs().max().item<double>(), 0.0);
  const auto gates = gate(random({1, 64, 4, 64}, 5, at::kFloat), EffectiveFlags{});
  EXPECT_GT(gates.std(1).min().item<double>(), 1e-4);  // not 1/3 for every token
  gates.select(-1, 0).sum().backward();
  for (const auto& parameter : gate->named_parameters())
    EXPECT_GT(parameter.value().grad().abs().max().item<double>(), 0.0) << parameter.key();
}

TEST(Gate, Bf16WeightsComputeInFp32) {
  auto gate = make(8, 2);
  gate->to(torch::kBFloat16);
  const auto q = random({1, 9, 4, 8}, 6, at::kBFloat16);
  const auto gates = gate(q, EffectiveFlags{});
  EXPECT_EQ(gates.scalar_type(), torch::kFloat);
  EXPECT_LE((gates.sum(-1) - 1).abs().max().item<double>(), 1e-6);
  gate->to(torch::kDouble);
  EXPECT_LE(distance(gates, gate(q.to(torch::kDouble), EffectiveFlags{})), 1e-6);
}

}  // namespace
}  // namespace nsa
