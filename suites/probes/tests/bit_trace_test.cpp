// The bits of a model's stages: the same model gives the same, and one bit that is another gives another from there on.
#include "suites/probes/bit_trace.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "suites/subject.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::probes {
namespace bit_trace_test {

nsa::ModelConfig small_model() {
  nsa::ModelConfig model;
  model.dim = 24;
  model.n_layers = 2;
  model.n_heads = 6;
  model.n_kv_groups = 3;
  model.d_k = model.d_v = 8;
  model.vocab = 64;
  model.nsa = {.l = 8, .d = 4, .l_sel = 8, .n_sel = 3, .w = 9};
  return model;
}

// The facts of one backward pass, with `change` of the weights before it.
harness::Json traced(const std::string& wanted, const std::function<void(nsa::LanguageModelImpl&)>& change = {}) {
  harness::Settings settings = tests::default_settings();
  settings.set("trace", wanted, "test");
  tests::RecordingContext context(settings);
  Instance instance = Subject(std::make_shared<Seams>()).model({.config = small_model(), .flags = {}, .seed = 5});
  if (change) {
    const at::NoGradGuard no_grad;
    change(*instance.model);
  }
  BitTrace trace(context, *instance.model);
  const at::Tensor tokens = at::arange(42).remainder(64).view({1, 42});
  const at::Tensor loss = instance.model->loss(tokens);
  loss.backward();
  trace.add_parameters();
  trace.end_step(3);
  return context.facts;
}

TEST(BitTrace, TheSameModelGivesTheSameBits) {
  const harness::Json a = traced("true"), b = traced("true");
  EXPECT_EQ(a, b);
  ASSERT_TRUE(a.contains("trace/3"));
  EXPECT_GT(a["trace/3"].size(), 40U);
  EXPECT_TRUE(a["trace/3"].contains("loss"));
  EXPECT_TRUE(a["trace/3"].contains("gradient of embedding.weight")) << "as it arrives in the backward pass";
  EXPECT_TRUE(a["trace/3"].contains("parameter embedding.weight"));
}

TEST(BitTrace, NothingIsToldUnlessItIsWanted) { EXPECT_TRUE(traced("false").empty()); }

TEST(BitTrace, AnotherWeightOfTheSecondLayerShowsThereFirst) {
  const harness::Json a = traced("true")["trace/3"], b = traced("true", [](nsa::LanguageModelImpl&model) {
                                                       for (const auto& item : model.named_parameters())
                                                         if (item.key().starts_with("layers.1."))
                                                           item.value().mul_(1.001);
                                                     })["trace/3"];
  std::string first;
  for (const auto& [name, hash] : a.items())
    if (first.empty() && b.at(name) != hash) first = name;
  EXPECT_TRUE(first.starts_with("layers.1.")) << first;
}

TEST(BitTrace, DtypeShapeAndEveryBitCount) {
  const at::Tensor zeros = at::zeros({2, 3});
  EXPECT_EQ(bits_of(zeros), bits_of(at::zeros({2, 3})));
  EXPECT_NE(bits_of(zeros), bits_of(at::zeros({3, 2})));
  EXPECT_NE(bits_of(zeros), bits_of(at::zeros({2, 3}, at::kInt)));
  EXPECT_NE(bits_of(zeros), bits_of(-zeros)) << "-0 is not 0";
  const at::Tensor nan = at::full({1}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(bits_of(nan), bits_of(nan.clone()));
  EXPECT_EQ(bits_of(at::arange(6).view({2, 3}).t()), bits_of(at::arange(6).view({2, 3}).t().contiguous()));
}

}  // namespace bit_trace_test
}  // namespace suites::probes
