#include "nsa/parameters.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cstring>
#include <fstream>

#include "nsa/model/make.hpp"
#include "nsa/tests/scratch.hpp"
#include "nsa/train/checkpoint.hpp"
#include "nsa/train/files.hpp"
#include "nsa/train/tensor_file.hpp"

namespace parameters_test {

namespace fs = std::filesystem;
using nsa::LanguageModel;
using nsa::fixtures::Scratch;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

nsa::ModelConfig small() {
  nsa::ModelConfig config;
  config.dim = 16;
  config.n_layers = 1;
  config.n_heads = 2;
  config.n_kv_groups = 1;
  config.d_k = config.d_v = 8;
  config.nsa = {.l = 4, .d = 2, .l_sel = 4, .n_sel = 3, .w = 8};
  return config;
}

LanguageModel made(std::uint64_t seed, nsa::Precision precision = nsa::Precision::fp32) {
  return nsa::make_model(small(), {}, {.precision = precision, .seed = seed});
}

Tensors weights(const LanguageModel& model) {
  Tensors found;
  for (const auto& parameter : model->named_parameters())
    found.emplace(parameter.key(), parameter.value().detach().clone());
  return found;
}

void expect_same(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

// A safetensors file as another program writes it: no metadata, no checksum.
void write_plain(const fs::path& file, const std::string& header, const std::string& content) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  std::ofstream(file, std::ios::binary) << bytes << header << content;
}

std::string refusal(const fs::path& file, std::string_view prefix = "") {
  try {
    (void)nsa::load_tensors(file, prefix);
  } catch (const nsa::train::TensorFileInvalid& invalid) {
    return invalid.what();
  }
  return "";
}

TEST(MakeModel, IsReadyToRunAndFollowsFromItsSeed) {
  auto model = made(3), same = made(3), other = made(4);
  const auto tokens = at::randint(0, 256, {2, 21}, at::detail::createCPUGenerator(1), at::kLong);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(model->loss(tokens), same->loss(tokens)));
  EXPECT_FALSE(at::equal(model->loss(tokens), other->loss(tokens)));
}

TEST(MakeModel, WithoutASeedGoesOnWithTorchsGenerator) {
  torch::manual_seed(5);
  const auto model = nsa::make_model(small(), {});
  expect_same(weights(model), weights(made(5)));
  EXPECT_FALSE(at::equal(nsa::make_model(small(), {})->embedding->weight, model->embedding->weight));
}

TEST(MakeModel, PrecisionFlagsAndFunctionsAreThoseThatWereGiven) {
  EXPECT_EQ(made(1, nsa::Precision::bf16)->head->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(made(1, nsa::Precision::fp64)->head->weight.scalar_type(), at::kDouble);

  const auto flags = nsa::resolve({{"NSA_FORCE_PARITY", "1"}});
  nsa::Dispatcher dispatcher(flags);
  auto model = nsa::make_model(small(), flags, {.ops = dispatcher.provider()});
  (void)model(at::zeros({1, 9}, at::kLong));
  EXPECT_TRUE(model->runtime->flags.force_parity);
  ASSERT_FALSE(dispatcher.routes_taken().empty());
  for (const nsa::Taken& taken : dispatcher.routes_taken()) EXPECT_EQ(taken.choice.backend, nsa::Backend::reference);
}

TEST(MakeModel, WhatCannotBeMadeIsRefusedAndDrawsNothing) {
  torch::manual_seed(7);
  const auto before = at::rand({1});
  torch::manual_seed(7);
  auto config = small();
  config.n_heads = 0;
  config.nsa.d = 3;
  try {
    (void)nsa::make_model(config, {}, {.seed = 1});
    ADD_FAILURE() << "not refused";
  } catch (const nsa::ConfigInvalid& invalid) {
    EXPECT_THAT(invalid.what(), AllOf(HasSubstr("model.n_heads = 0"), HasSubstr("nsa.d = 3")));
  }
  EXPECT_TRUE(at::equal(at::rand({1}), before));
  if (!torch::cuda::is_available()) {
    EXPECT_THROW((void)nsa::make_model(small(), {}, {.device = at::Device(at::kCUDA, 0)}), nsa::ContractError);
  }
}

TEST(LoadTensors, ACheckpointsParametersMakeTheSameModel) {
  const Scratch folder;
  auto model = made(1), other = made(2);
  nsa::train::TrainState state;
  for (const auto& [name, tensor] : weights(model)) state.tensors.emplace("model/" + name, tensor);
  state.tensors.emplace("optimizer/step/norm.weight", at::ones({}));
  state.facts = {{"step", 3}};
  nsa::train::write_checkpoint(folder / "x", state);

  EXPECT_EQ(nsa::load_tensors(folder / "x").size(), state.tensors.size());
  nsa::load_parameters(other, nsa::load_tensors(folder / "x", nsa::kCheckpointParameters));
  expect_same(weights(other), weights(model));
  EXPECT_THAT(refusal(folder / "x", "ema/"), HasSubstr("no tensor whose name begins with 'ema/'"));

  std::string bytes = nsa::train::read_text(folder / "x");
  bytes[bytes.size() - 20] = static_cast<char>(bytes[bytes.size() - 20] ^ 1);
  std::ofstream(folder / "x", std::ios::binary) << bytes;
  EXPECT_THROW((void)nsa::load_tensors(folder / "x"), nsa::train::CheckpointInvalid);
}

TEST(LoadTensors, AFileOfAnotherProgramIsRead) {
  const Scratch folder;
  const float values[] = {1.5F, -2.0F, 0.25F};
  const std::string content(reinterpret_cast<const char*>(values), sizeof values);
  write_plain(folder / "x",
              R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
              R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
              content);
  const auto tensors = nsa::load_tensors(folder / "x");
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_TRUE(at::equal(tensors.at("a"), at::tensor({1.5F, -2.0F})));
  EXPECT_TRUE(at::equal(tensors.at("b"), at::tensor({0.25F})));
  write_plain(folder / "metadata", R"({"__metadata__":{"format":"pt"}})", "");
  EXPECT_TRUE(nsa::load_tensors(folder / "metadata").empty());
}

TEST(LoadTensors, WhatIsNoWholeFileIsRefused) {
  const Scratch folder;
  const auto put = [&](const std::string& header, const std::string& content) {
    write_plain(folder / "x", header, content);
    const auto told = refusal(folder / "x");
    EXPECT_THAT(told, HasSubstr((folder / "x").string())) << header;
    return told;
  };
  const std::string two = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_THAT(put(two, "1234567"), HasSubstr("is cut off within a"));
  EXPECT_THAT(put(two, "123456789"), HasSubstr("goes on after its end"));
  EXPECT_THAT(put(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", "123456789012"),
              HasSubstr("does not hold a where its header says"));
  EXPECT_THAT(put(R"({"a":{"dtype":"F8","shape":[2],"data_offsets":[0,2]}})", "12"), HasSubstr("unknown dtype"));
  EXPECT_THAT(put(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "12345678"),
              HasSubstr("impossible shape"));
  EXPECT_THAT(put(R"({"a":{"shape":[2]}})", ""), HasSubstr("a header that makes no sense"));
  EXPECT_THAT(put(R"({"a":3})", ""), HasSubstr("a header that makes no sense"));
  EXPECT_THAT(put(R"({"__metadata__":3})", ""), HasSubstr("has metadata that are no"));
  EXPECT_THAT(put("[]", ""), HasSubstr("has no header"));
  std::ofstream(folder / "x", std::ios::binary) << "no tensors at all";
  EXPECT_THAT(refusal(folder / "x"), HasSubstr("is no file of tensors"));
  std::ofstream(folder / "x", std::ios::binary) << "";
  EXPECT_THAT(refusal(folder / "x"), HasSubstr("is cut off"));
  EXPECT_THROW((void)nsa::load_tensors(folder / "absent"), nsa::train::FileError);
  EXPECT_THROW((void)nsa::load_tensors(folder.path()), std::runtime_error);
}

TEST(LoadParameters, AreRoundedToTheModelsDtype) {
  auto model = made(1), narrow = made(2, nsa::Precision::bf16);
  nsa::load_parameters(narrow, weights(model));
  for (const auto& [name, tensor] : weights(narrow)) {
    EXPECT_EQ(tensor.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(tensor, weights(model).at(name).to(at::kBFloat16))) << name;
  }
}

TEST(LoadParameters, EverythingThatDiffersIsToldAtOnceAndNothingChanged) {
  auto model = made(1);
  const auto before = weights(model);
  auto given = weights(made(2));
  given.erase("norm.weight");
  given["head.weight"] = at::zeros({3, 16});
  given["layers.0.mlp.fc1.weight"] = given["layers.0.mlp.fc1.weight"].to(at::kLong);
  given["layers.0.mlp.fc2.weight"] = at::Tensor();
  given["lm_head.weight"] = at::zeros({1});
  try {
    nsa::load_parameters(model, given);
    ADD_FAILURE() << "not refused";
  } catch (const nsa::ParametersMismatch& mismatch) {
    EXPECT_THAT(mismatch.differences,
                ElementsAre("parameter head.weight is [3, 16] there and [256, 16] here",
                            "parameter layers.0.mlp.fc1.weight is Long there, no floating-point number",
                            "parameter layers.0.mlp.fc2.weight is undefined there",
                            "parameter norm.weight is missing there", "parameter lm_head.weight is unknown here"));
    EXPECT_THAT(mismatch.what(), AllOf(HasSubstr("not the parameters of this model"), HasSubstr("lm_head.weight")));
  }
  expect_same(weights(model), before);
  EXPECT_THROW(nsa::load_parameters(LanguageModel(nullptr), before), std::invalid_argument);
}

}  // namespace parameters_test
