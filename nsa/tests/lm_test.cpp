#include "nsa/model/lm.hpp"

#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>

#include <chrono>
#include <cmath>
#include <set>

#include "nsa/tests/model_fixtures.hpp"

namespace nsa {
namespace {

using fixtures::bytes;
using fixtures::cu;
using fixtures::distance;
using fixtures::make_model;
using fixtures::message_of;
using fixtures::tiny;

std::int64_t count(LanguageModelImpl& model) {
  std::int64_t sum = 0;
  for (const auto& parameter : model.parameters()) sum += parameter.numel();
  return sum;
}

TEST(LanguageModel, HasAsManyParametersAsSaid) {
  for (const auto phi : {Phi::avg, Phi::mlp}) {
    auto config = tiny();
    config.phi = phi;
    config.d_v = 6;
    EXPECT_EQ(count(*make_model(config)), parameter_count(config));
  }
  const ModelConfig seed;  // m7c_125m
  EXPECT_EQ(parameter_count(seed), 78'295'332);
  EXPECT_EQ(count(*make_model(seed)), 78'295'332);
}

TEST(LanguageModel, WhatCannotWorkIsRefusedByName) {
  auto config = tiny();
  config.n_heads = 7;
  config.nsa.d = 3;
  EXPECT_THROW(static_cast<void>(make_model(config)), ConfigInvalid);
  const auto message = message_of([&] { static_cast<void>(make_model(config)); });
  EXPECT_NE(message.find("model.n_heads = 7: must be a multiple of model.n_kv_groups (2)"), std::string::npos)
      << message;
  EXPECT_NE(message.find("nsa.d = 3: must divide nsa.l (4)"), std::string::npos) << message;

  LanguageModel bare(tiny(), Runtime{});
  EXPECT_THROW(static_cast<void>(bare(bytes({1, 9}, 1))), ContractError);
  EXPECT_NE(message_of([&] {
              static_cast<void>(bare(bytes({1, 9}, 1)));
            }).find("Runtime::ops is empty"),
            std::string::npos);
}

TEST(LanguageModel, LossAtTheStartIsThatOfAnUntrainedModel) {
  auto config = tiny();
  config.dim = 128;
  auto model = make_model(config);
  const torch::NoGradGuard no_grad;
  EXPECT_NEAR(model->loss(bytes({4, 257}, 1)).item<double>(), 5.71, 0.15);
}

TEST(LanguageModel, LearnsATextByHeart) {
  auto model = make_model(tiny());
  const auto text = bytes({2, 41}, 2);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  double first = 0, last = 0;
  for (int step = 0; step < 25; ++step) {
    optimizer.zero_grad();
    const auto loss = model->loss(text);
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, first - 2.0);
}

TEST(LanguageModel, EveryParameterGetsAFiniteGradientThatIsNotZero) {
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    auto model = make_model(tiny());
    model->to(type);
    const auto loss = model->loss(bytes({2, 66}, 3));
    EXPECT_EQ(loss.scalar_type(), type == torch::kDouble ? torch::kDouble : torch::kFloat);
    EXPECT_TRUE(std::isfinite(loss.item<double>()));
    loss.backward();
    for (const auto& parameter : model->named_parameters()) {
      const auto& gradient = parameter.value().grad();
      ASSERT_TRUE(gradient.defined()) << parameter.key();
      EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << parameter.key();
      EXPECT_GT(gradient.abs().max().item<double>(), 0.0) << parameter.key();
    }
  }
}

TEST(LanguageModel, RoutesAgree) {
  const auto tokens = bytes({2, 70}, 4);
  const torch::NoGradGuard no_grad;
  auto wanted_model = make_model(tiny(), {{"NSA_FORCE_PARITY", "1"}});
  wanted_model->to(torch::kDouble);
  const auto wanted = wanted_model(tokens);
  for (const Environment& environment :
       {Environment{}, {{"NSA_FORCE_SEL_MASK", "1"}}, {{"NSA_TRAIN_SAFE_PACK", "1"}}, {{"NSA_STRICT_ASSERTS", "1"}}}) {
    auto model = make_model(tiny(), environment);
    model->to(torch::kDouble);
    EXPECT_LE(distance(model(tokens), wanted), 1e-11);
    model->to(torch::kFloat);  // the same weights: they were drawn in fp32
    EXPECT_LE(distance(model(tokens), wanted), 1e-4);
    model->to(torch::kBFloat16);
    EXPECT_TRUE(model(tokens).isfinite().all().item<bool>());
  }
}

TEST(LanguageModel, SameSeedSameBitsAlsoAfterAReset) {
  auto config = tiny();
  config.phi = Phi::mlp;
  auto one = make_model(config, {}, 5), two = make_model(config, {}, 5), other = make_model(config, {}, 6);
  EXPECT_FALSE(torch::equal(other->head->weight, one->head->weight));
  torch::manual_seed(5);
  other->reset_parameters();
  for (const auto& parameter : one->named_parameters()) {
    EXPECT_TRUE(torch::equal(two->named_parameters()[parameter.key()], parameter.value())) << parameter.key();
    EXPECT_TRUE(torch::equal(other->named_parameters()[parameter.key()], parameter.value())) << parameter.key();
  }
}

TEST(LanguageModel, KeepsItsLaws) {
  auto config = tiny();
  config.dim = 192;
  config.phi = Phi::mlp;
  auto model = make_model(config);
  const auto std_of = [](const torch::Tensor& t) { return t.std().item<double>(); };
  const auto uniform = [&](const torch::Tensor& weight, const char* name) {
    const double bound = 1.0 / std::sqrt(static_cast<double>(weight.size(1)));
    EXPECT_LE(weight.abs().max().item<double>(), bound) << name;
    EXPECT_NEAR(std_of(weight) / (bound / std::sqrt(3.0)), 1.0, 0.1) << name;
  };
  auto& block = *model->layers->ptr<BlockImpl>(1);
  uniform(block.attention->q->weight, "q");
  uniform(block.attention->v_win->weight, "v_win");
  uniform(block.attention->o->weight, "o");
  uniform(block.attention->phi_k->fc1->weight, "phi_k.fc1");
  uniform(block.mlp->fc1->weight, "mlp.fc1");
  uniform(block.mlp->fc2->weight, "mlp.fc2");
  uniform(model->head->weight, "head");
  EXPECT_NEAR(std_of(block.attention->phi_v->position), 0.02, 0.02 * 0.5);
  EXPECT_NEAR(std_of(model->embedding->weight), 1.0, 0.02);
  EXPECT_TRUE(torch::equal(model->norm->weight, torch::ones({192})));
  for (const auto& parameter : model->named_parameters())  // no biases but the gate's
    EXPECT_TRUE(parameter.key().find("bias") == std::string::npos ||
                parameter.key().find(".gate.") != std::string::npos)
        << parameter.key();
}

TEST(LanguageModel, APackedBatchEqualsItsDocuments) {
  auto model = make_model(tiny());
  model->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  const auto tokens = bytes({1, 80}, 7);
  const auto documents_of = cu({0, 0, 1, 4, 40, 80});
  const auto packed = model(tokens, documents_of);
  for (const auto& [begin, end] : documents(documents_of, 80))
    if (begin < end) {
      EXPECT_LE(distance(packed.narrow(1, begin, end - begin), model(tokens.narrow(1, begin, end - begin))), 1e-12)
          << begin;
    }
}

// 90 tokens, of which the last is only predicted; the documents' lengths are 1, 3, 36, 0, 40, 9 and 1.
TEST(LanguageModel, ThePackedLossIsThatOfItsDocuments) {
  auto model = make_model(tiny());
  model->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  const auto tokens = bytes({1, 90}, 11);
  const auto documents_of = cu({0, 1, 4, 40, 40, 80, 89, 90});
  double sum = 0;
  std::int64_t predictions = 0;
  for (const auto& [begin, end] : documents(documents_of, 90))
    if (end - begin >= 2) {
      const std::int64_t own = end - begin - 1;
      sum += model->loss(tokens.narrow(1, begin, end - begin)).item<double>() * static_cast<double>(own);
      predictions += own;
    }
  ASSERT_EQ(predictions, 84);
  const double packed = model->loss(tokens, documents_of).item<double>();
  EXPECT_NEAR(packed, sum / 84.0, 1e-11);

  // What it must not be: the mean over all 89, with the predictions across the borders in it.
  const auto logits = model(tokens.narrow(1, 0, 89), cu({0, 1, 4, 40, 40, 80, 89}));
  const auto across = torch::nn::functional::cross_entropy(logits[0], tokens[0].narrow(0, 1, 89)).item<double>();
  EXPECT_GT(std::abs(packed - across), 1e-3);
}

TEST(LanguageModel, ThePackedLossOfAGpuIsThatOfTheCpu) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  auto model = make_model(tiny());
  const torch::NoGradGuard no_grad;
  const auto tokens = bytes({1, 90}, 11);
  const auto documents_of = cu({0, 1, 4, 40, 40, 80, 89, 90});
  const double wanted = model->loss(tokens, documents_of).item<double>();
  model->to(torch::kCUDA);
  EXPECT_NEAR(model->loss(tokens.to(torch::kCUDA), documents_of).item<double>(), wanted, 1e-4);
}

TEST(LanguageModel, OneDocumentIsNoPacking) {
  auto model = make_model(tiny());
  const torch::NoGradGuard no_grad;
  const auto tokens = bytes({1, 41}, 12);
  EXPECT_NEAR(model->loss(tokens, cu({0, 41})).item<double>(), model->loss(tokens).item<double>(), 1e-6);
}

// The first token of a document and what stands before it have nothing to do with one another.
TEST(LanguageModel, NoGradientCrossesADocumentsBorder) {
  auto model = make_model(tiny());
  const auto tokens = bytes({1, 31}, 13);
  const auto gradient_of = [&](const torch::Tensor& given) {
    model->zero_grad();
    model->loss(given, cu({0, 10, 31})).backward();
    return model->head->weight.grad().clone();
  };
  auto changed = tokens.clone();
  changed[0][10] = (changed[0][10] + 1) % 256;
  const auto before = gradient_of(tokens), after = gradient_of(changed);
  EXPECT_GT((before - after).abs().max().item<double>(), 0.0);  // it is an input of its own document
  model->zero_grad();
  model->loss(tokens.narrow(1, 0, 10)).backward();
  const auto first = model->head->weight.grad().clone();
  model->zero_grad();
  model->loss(changed.narrow(1, 10, 21)).backward();
  const auto second = model->head->weight.grad();
  EXPECT_LE(distance(after, (first * 9 + second * 20) / 29), 1e-5);
}

TEST(LanguageModel, RefusesPackedLossesThatPredictNothing) {
  auto model = make_model(tiny());
  const auto refusal = [&](const torch::Tensor& tokens, const CuSeqlens& cu_seqlens) {
    return message_of([&] { static_cast<void>(model->loss(tokens, cu_seqlens)); });
  };
  EXPECT_NE(refusal(bytes({1, 3}, 1), cu({0, 1, 2, 3})).find("3 documents of one token"), std::string::npos);
  EXPECT_EQ(refusal(bytes({1, 3}, 1), cu({0, 1, 1, 3})), "");
  EXPECT_NE(refusal(bytes({1, 4}, 1), cu({0, 2, 3})).find("the 4 tokens"), std::string::npos);  // all S+1 of them
  EXPECT_NE(refusal(bytes({2, 4}, 1), cu({0, 4})).find("B = 2"), std::string::npos);
}

TEST(LanguageModel, OutputsDoNotDependOnTheFuture) {
  auto model = make_model(tiny());
  const torch::NoGradGuard no_grad;
  const auto tokens = bytes({1, 70}, 8);
  const auto before = model(tokens);
  for (const std::int64_t t : {0, 5, 31, 62, 68}) {
    auto changed = tokens.clone();
    changed.narrow(1, t + 1, 69 - t).copy_(bytes({1, 69 - t}, 9));
    EXPECT_TRUE(torch::equal(model(changed).narrow(1, 0, t + 1), before.narrow(1, 0, t + 1))) << t;
  }
}

TEST(LanguageModel, ObservesEveryStageOfEveryLayer) {
  auto model = make_model(tiny());
  std::set<std::string> names;
  model->runtime->observe = [&](std::string_view name, const torch::Tensor& value) {
    EXPECT_TRUE(value.defined()) << name;
    names.insert(std::string(name));
  };
  static_cast<void>(model->loss(bytes({1, 41}, 10)));
  for (const char* name : {"embedding", "layers.0.attention.q", "layers.1.attention.sel.o", "layers.1.attention",
                           "layers.0.mlp", "layers.1", "norm", "logits", "loss"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_EQ(names.size(), 2u * (9 + 3) + 4u);
}

TEST(LanguageModel, RefusesWhatIsNotText) {
  auto model = make_model(tiny());
  const auto refusal = [&](const torch::Tensor& tokens, const CuSeqlens& cu_seqlens = {}) {
    return message_of([&] { static_cast<void>(model(tokens, cu_seqlens)); });
  };
  EXPECT_NE(refusal(torch::zeros({1, 3})).find("tokens: is Float [1, 3]"), std::string::npos);
  EXPECT_NE(refusal(torch::zeros({3}, torch::kLong)).find("[B,S]"), std::string::npos);
  EXPECT_NE(refusal(torch::zeros({1, 0}, torch::kLong)).find("not empty"), std::string::npos);
  EXPECT_NE(refusal(torch::full({1, 3}, 256, torch::kLong)).find("allowed: 0 to 255"), std::string::npos);
  EXPECT_NE(refusal(torch::Tensor()).find("undefined"), std::string::npos);
  EXPECT_NE(refusal(torch::zeros({2, 3}, torch::kLong), cu({0, 3})).find("B = 2"), std::string::npos);
  EXPECT_NE(refusal(torch::zeros({1, 3}, torch::kLong), cu({0, 2})).find("the 3 tokens"), std::string::npos);
  EXPECT_THROW(static_cast<void>(model->loss(torch::zeros({1, 1}, torch::kLong))), ContractError);
}

}  // namespace
}  // namespace nsa
