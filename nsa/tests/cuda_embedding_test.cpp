// The embedding's gradient as one product, against sums in fp64. On a GPU, or over the kernels' emulation.
#include "nsa/model/embedding.hpp"

#include <gmock/gmock.h>

#include "nsa/tests/cuda_fixtures.hpp"

namespace nsa::cuda {
namespace {

using fixtures::device;
using fixtures::on_device;
using fixtures::relative_error;

class CudaEmbedding : public fixtures::CudaKernels {};

Runtime runtime_of(const Environment& environment = {}) {
  return {.flags = resolve(environment), .ops = {}, .observe = {}};
}

torch::nn::Embedding small_embedding(std::int64_t vocab, at::ScalarType type) {
  torch::manual_seed(2);
  torch::nn::Embedding embedding(vocab, 24);
  embedding->to(device(), type);
  return embedding;
}

// Many tokens of few kinds, some of which do not come.
at::Tensor tokens_below(std::int64_t vocab) {
  return at::randint(0, vocab, {3, 101}, at::detail::createCPUGenerator(4), at::kLong).to(device()).narrow(1, 1, 99);
}

at::Tensor gradient_of(torch::nn::Embedding embedding, const at::Tensor& tokens, const at::Tensor& dy,
                       const Runtime& runtime) {
  embedding->zero_grad();
  embed(embedding, tokens, runtime).backward(dy);
  return embedding->weight.grad();
}

TEST_F(CudaEmbedding, ItsGradientIsTheSumOverEachTokensPlaces) {
  for (const auto type : {at::kBFloat16, at::kHalf})
    for (const std::int64_t vocab : {2, 37, 256}) {
      auto embedding = small_embedding(vocab, type);
      const auto tokens = tokens_below(vocab), dy = on_device({3, 99, 24}, 5, type);
      const auto runtime = runtime_of();
      EXPECT_TRUE(at::equal(embed(embedding, tokens, runtime), embedding(tokens)));
      const auto got = gradient_of(embedding, tokens, dy, runtime);
      const auto wanted = at::zeros({vocab, 24}, dy.options().dtype(at::kDouble))
                              .index_add(0, tokens.flatten(), dy.to(at::kDouble).flatten(0, 1));
      EXPECT_LE(relative_error(got, wanted), fixtures::kGradientBound) << vocab;
      EXPECT_TRUE(at::equal(got, gradient_of(embedding, tokens, dy, runtime)));
      EXPECT_EQ(runtime.parts->taken().size(), 1U);
      EXPECT_EQ(runtime.parts->taken()[0].way, "joined");
    }
}

TEST_F(CudaEmbedding, ANaNIsSeen) {
  auto embedding = small_embedding(37, at::kBFloat16);
  auto dy = on_device({3, 99, 24}, 5, at::kBFloat16);
  dy[1][7][3] = NAN;
  const auto got = gradient_of(embedding, tokens_below(37), dy, runtime_of());
  EXPECT_TRUE(got.select(1, 3).isnan().all().item<bool>());
  EXPECT_EQ(got.isnan().sum().item<std::int64_t>(), 37);
}

TEST_F(CudaEmbedding, WhatIsNotServedIsATens) {
  const auto why = [](const Environment& environment, std::int64_t vocab, at::ScalarType type) {
    auto embedding = small_embedding(vocab, type);
    const auto runtime = runtime_of(environment);
    (void)gradient_of(embedding, tokens_below(vocab), on_device({3, 99, 24}, 5, type), runtime);
    const auto taken = runtime.parts->taken();
    return taken[0].way + ": " + taken[0].why;
  };
  EXPECT_EQ(why({}, 1024, at::kBFloat16), "joined: served");
  EXPECT_EQ(why({}, 1025, at::kBFloat16), "aten: joined refused: 1025 tokens; served: a vocabulary of at most 1024");
  EXPECT_EQ(why({}, 37, at::kFloat), "aten: joined refused: the weight is Float; served: BFloat16 and Half");
  for (const auto& [name, value] :
       Environment{{"NSA_FUSED_EMBEDDING", "0"}, {"NSA_USE_CUDA", "0"}, {"NSA_FORCE_PARITY", "1"}})
    EXPECT_EQ(why({{name, value}}, 37, at::kBFloat16), "aten: joined refused: " + name + "=" + value);
}

TEST_F(CudaEmbedding, SecondDerivativesAreRefused) {
  auto embedding = small_embedding(37, at::kBFloat16);
  const auto y = embed(embedding, tokens_below(37), runtime_of());
  EXPECT_THROW((void)torch::autograd::grad({y.sum()}, {embedding->weight}, {}, std::nullopt, /*create_graph=*/true),
               c10::NotImplementedError);
}

}  // namespace
}  // namespace nsa::cuda
