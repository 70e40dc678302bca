#include "nsa/model/recompute.hpp"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "nsa/tests/model_fixtures.hpp"

namespace nsa {
namespace {

using fixtures::bytes;
using fixtures::cu;
using fixtures::make_model;
using fixtures::tiny;

// Two models of the same weights, one of which recomputes.
struct Pair {
  LanguageModel plain, recomputing;
};

Pair two_models(const ModelConfig& config = tiny(), const Environment& environment = {},
                at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU) {
  Pair pair{make_model(config, environment), make_model(config, environment)};
  for (auto model : {pair.plain, pair.recomputing}) model.ptr()->to(device, dtype);
  pair.recomputing->runtime->recompute = true;
  return pair;
}

void expect_same_gradients(const LanguageModel& a, const LanguageModel& b) {
  const auto theirs = b->named_parameters();
  std::size_t compared = 0;
  for (const auto& item : a->named_parameters()) {
    const auto& mine = item.value().grad();
    const auto& other = theirs[item.key()].grad();
    ASSERT_EQ(mine.defined(), other.defined()) << item.key();
    if (!mine.defined()) continue;  // a flag may cut it off
    EXPECT_TRUE(at::equal(mine, other)) << item.key();
    ++compared;
  }
  EXPECT_GT(compared, theirs.size() / 2);
}

void step_both(Pair& pair, const at::Tensor& tokens, const CuSeqlens& cu_seqlens = {}) {
  const auto wanted = pair.plain->loss(tokens, cu_seqlens);
  const auto loss = pair.recomputing->loss(tokens, cu_seqlens);
  EXPECT_TRUE(at::equal(loss, wanted));
  wanted.backward();
  loss.backward();
  expect_same_gradients(pair.plain, pair.recomputing);
}

TEST(Recompute, LossAndGradientsAreThoseWithoutItBitForBit) {
  auto learned = tiny();
  learned.phi = Phi::mlp;
  learned.n_layers = 3;
  for (const auto& config : {tiny(), learned}) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      auto pair = two_models(config, {}, dtype);
      step_both(pair, bytes({2, 60}, 3));
    }
  }
}

TEST(Recompute, BitEqualByEveryRouteOfTheFlags) {
  for (const Environment& environment : {Environment{{"NSA_FORCE_PARITY", "1"}},
                                         {{"NSA_FORCE_SEL_MASK", "1"}},
                                         {{"NSA_STRICT_ASSERTS", "1"}},
                                         {{"NSA_FORCE_BRANCH", "cmp"}},
                                         {{"NSA_STOPGRAD_GATES", "1"}},
                                         {{"NSA_NVTX", "1"}}}) {
    auto pair = two_models(tiny(), environment);
    step_both(pair, bytes({1, 50}, 4));
  }
}

TEST(Recompute, BitEqualOnAPackedBatch) {
  auto pair = two_models();
  step_both(pair, bytes({1, 61}, 5), cu({0, 17, 17, 40, 61}));
}

TEST(Recompute, AccumulatesOverBatches) {
  auto pair = two_models();
  for (std::uint64_t batch = 0; batch < 3; ++batch) step_both(pair, bytes({1, 40}, batch));  // .grad is not cleared
}

TEST(Recompute, EachGradientArrivesOnceAndAHookMayChangeIt) {
  auto pair = two_models();
  std::map<std::string, int> arrivals;
  for (auto& item : pair.recomputing->named_parameters())
    item.value().register_hook([&arrivals, name = item.key()](const at::Tensor&) { ++arrivals[name]; });
  for (auto model : {pair.plain, pair.recomputing})
    model->layers[0]->as<BlockImpl>()->attention->q->weight.register_hook([](const at::Tensor& g) { return g * 2; });
  step_both(pair, bytes({1, 40}, 6));
  EXPECT_EQ(arrivals.size(), pair.recomputing->parameters().size());
  for (const auto& [name, times] : arrivals) EXPECT_EQ(times, 1) << name;
}

TEST(Recompute, KeepsOnlyTheInputsOfLayersAliveAfterTheForwardPass) {
  auto pair = two_models();
  const auto kept = [](LanguageModel& model) {
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> queries;
    model->runtime->observe = [&](std::string_view name, const at::Tensor& value) {
      if (name == "layers.0.attention.q") queries = value.storage().getWeakStorageImpl();
    };
    const auto loss = model->loss(bytes({1, 40}, 7));
    model->runtime->observe = nullptr;
    return !queries.value().expired();
  };
  EXPECT_TRUE(kept(pair.plain));
  EXPECT_FALSE(kept(pair.recomputing));
}

TEST(Recompute, StagesAreObservedAgainInTheBackwardPassWithTheirGradients) {
  auto pair = two_models();
  auto& model = pair.recomputing;
  std::vector<std::string> outputs;
  int gradients = 0;
  model->runtime->observe = [&](std::string_view name, const at::Tensor& value) {
    if (name.ends_with(".attention.o")) outputs.emplace_back(name);
    if (name == "layers.0.attention.sel.o") value.register_hook([&](const at::Tensor&) { ++gradients; });
  };
  const auto loss = model->loss(bytes({1, 40}, 8));
  EXPECT_EQ(outputs, (std::vector<std::string>{"layers.0.attention.o", "layers.1.attention.o"}));
  loss.backward();
  EXPECT_EQ(outputs, (std::vector<std::string>{"layers.0.attention.o", "layers.1.attention.o", "layers.1.attention.o",
                                               "layers.0.attention.o"}));
  EXPECT_EQ(gradients, 1);
}

TEST(Recompute, FrozenPartsGetNoGradientAndTheRestStillLearns) {
  auto pair = two_models();
  for (auto model : {pair.plain, pair.recomputing}) {
    model->embedding->weight.requires_grad_(false);  // the first layer's input needs no gradient
    model->layers[1]->as<BlockImpl>()->mlp->fc1->weight.requires_grad_(false);
  }
  step_both(pair, bytes({1, 40}, 9));
  EXPECT_FALSE(pair.recomputing->embedding->weight.grad().defined());
  EXPECT_TRUE(pair.recomputing->layers[0]->as<BlockImpl>()->attention->q->weight.grad().defined());
}

TEST(Recompute, AFullyFrozenModelHasNoGraph) {
  auto pair = two_models();
  for (auto& parameter : pair.recomputing->parameters()) parameter.requires_grad_(false);
  EXPECT_FALSE(pair.recomputing->loss(bytes({1, 40}, 10)).requires_grad());
}

TEST(Recompute, WithoutGradientsNothingIsComputedTwice) {
  auto pair = two_models();
  int asked = 0;
  auto& runtime = *pair.recomputing->runtime;
  runtime.ops = [&asked, inner = runtime.ops](const Call& call) {
    ++asked;
    EXPECT_FALSE(call.training);
    return inner(call);
  };
  const at::NoGradGuard no_grad;
  (void)pair.recomputing->loss(bytes({1, 40}, 11));
  EXPECT_EQ(asked, 2);
}

TEST(Recompute, BothPassesAreRoutedAsTraining) {
  auto pair = two_models();
  std::vector<bool> training;
  auto& runtime = *pair.recomputing->runtime;
  runtime.ops = [&training, inner = runtime.ops](const Call& call) {
    training.push_back(call.training);
    return inner(call);
  };
  pair.recomputing->loss(bytes({1, 40}, 11)).backward();
  EXPECT_EQ(training, std::vector<bool>(4, true));
}

TEST(Recompute, AKeptGraphCanBeUsedAgainAndAFreedOneIsRefused) {
  auto pair = two_models();
  const auto tokens = bytes({1, 40}, 12);
  for (auto model : {pair.plain, pair.recomputing}) {
    const auto loss = model->loss(tokens);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    EXPECT_THROW(loss.backward(), c10::Error);
  }
  expect_same_gradients(pair.plain, pair.recomputing);
}

TEST(Recompute, AnomalyModeNamesANanInsideALayer) {
  auto config = tiny();
  config.n_layers = 1;  // a stack trace at every node takes its time
  auto pair = two_models(config);
  const torch::autograd::DetectAnomalyGuard guard;
  pair.recomputing->loss(bytes({1, 20}, 13)).backward();  // silent on a clean step

  auto& runtime = *pair.recomputing->runtime;
  runtime.ops = [inner = runtime.ops](const Call& call) {
    Ops ops = inner(call);
    ops.replace(&Ops::attend_window, [window = ops.attend_window](const AttendWindowArgs& args) {
      Attended out = window(args);
      const auto nought = out.o * 0.0;
      out.o = out.o + at::sqrt(nought * nought) * 0.0;
      return out;
    });
    return ops;
  };
  const auto loss = pair.recomputing->loss(bytes({1, 20}, 14));
  try {
    loss.backward();
    FAIL() << "a NaN passed";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("SqrtBackward0' returned nan"), std::string::npos) << error.what();
  }
}

TEST(Recompute, AnErrorOfTheSecondPassReachesTheCaller) {
  auto pair = two_models();
  auto& runtime = *pair.recomputing->runtime;
  int asked = 0;
  runtime.ops = [&asked, inner = runtime.ops](const Call& call) {
    if (++asked == 3) throw Unsupported("planted");
    return inner(call);
  };
  const auto loss = pair.recomputing->loss(bytes({1, 40}, 15));
  EXPECT_THROW(loss.backward(), Unsupported);
}

TEST(Recompute, AnInputChangedAfterTheForwardPassIsNoticed) {
  auto pair = two_models();
  at::Tensor first;
  pair.recomputing->runtime->observe = [&](std::string_view name, const at::Tensor& value) {
    if (name == "embedding") first = value;
  };
  const auto loss = pair.recomputing->loss(bytes({1, 40}, 16));
  pair.recomputing->runtime->observe = nullptr;
  {
    const at::NoGradGuard no_grad;
    first.mul_(2.0);
  }
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(Recompute, RefusesASecondDerivative) {
  auto pair = two_models();
  const auto loss = pair.recomputing->loss(bytes({1, 40}, 17));
  try {
    loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    FAIL() << "accepted";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("create_graph"), std::string::npos) << error.what();
  }
}

TEST(Recompute, RefusesGradientsOfChosenTensors) {
  auto pair = two_models();
  const auto loss = pair.recomputing->loss(bytes({1, 40}, 18));
  EXPECT_THROW((void)torch::autograd::grad({loss}, {pair.recomputing->embedding->weight}), Unsupported);
  for (const auto& parameter : pair.recomputing->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(Recompute, OnAGpuWithinItsOwnSpread) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "needs a GPU";
  auto config = tiny();
  config.d_k = config.d_v = 64;
  for (const Environment& environment : {Environment{}, {{"NSA_USE_FA2", "1"}}}) {
    auto pair = two_models(config, environment, at::kBFloat16, at::kCUDA);
    const auto tokens = bytes({1, 200}, 19).to(at::kCUDA);
    const auto gradients = [&](LanguageModel& model) {
      std::vector<at::Tensor> all;
      model->zero_grad();
      model->loss(tokens).backward();
      for (const auto& p : model->parameters()) all.push_back(p.grad().to(at::kDouble).flatten());
      return at::cat(all);
    };
    const auto first = gradients(pair.plain), again = gradients(pair.plain), other = gradients(pair.recomputing);
    const double spread = (again - first).abs().max().item<double>(), scale = first.abs().max().item<double>();
    EXPECT_LE((other - first).abs().max().item<double>(), 4 * spread + 0x1p-8 * scale);
  }
}

}  // namespace
}  // namespace nsa
