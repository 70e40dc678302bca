// For tests of the step that a CUDA graph can hold: two trainers side by side, and what is the same of them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <tuple>

#include "nsa/tests/model_fixtures.hpp"
#include "nsa/train/trainer.hpp"

namespace nsa::train::graph_steps {

// Clipping happens in every step: norms of a model this small are about 1.
inline TrainConfig quick(CudaGraph cuda_graph = CudaGraph::on) {
  TrainConfig config;
  config.precision = Precision::fp32;
  config.steps = 20;
  config.seq_len = 33;
  config.batch_size = 2;
  config.lr = 3e-3;
  config.grad_clip = 0.1;
  config.cuda_graph = cuda_graph;
  return config;
}

// A model, its trainer, and random tokens: batch 1, 2, ... is the same for every bench.
struct Bench {
  explicit Bench(const TrainConfig& config, const nsa::ModelConfig& model_config = nsa::fixtures::tiny(),
                 at::Device device = at::kCPU, const nsa::OpsProvider& ops = {})
      : model(nsa::fixtures::make_model(model_config)) {
    if (ops) model->runtime->ops = ops;
    model->to(device);
    trainer = std::make_unique<Trainer>(model, config, [config, batch = batch] {
      return nsa::fixtures::bytes({config.batch_size, config.seq_len + 1}, ++*batch);
    });
  }
  LanguageModel model;
  std::shared_ptr<std::uint64_t> batch = std::make_shared<std::uint64_t>(0);
  std::unique_ptr<Trainer> trainer;
};

inline ::testing::AssertionResult same(const StepReport& a, const StepReport& b) {
  const auto text = [](const StepReport& r) {
    return ::testing::PrintToString(std::make_tuple(r.step, r.loss, r.lr, r.grad_norm, r.tokens, r.stop, r.anomaly));
  };
  return text(a) == text(b) ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << text(a) << text(b);
}

// Weights, moments, counts of updates and masters; all but the facts.
inline ::testing::AssertionResult same(const TrainState& a, const TrainState& b) {
  if (a.tensors.size() != b.tensors.size()) return ::testing::AssertionFailure() << "other tensors";
  for (const auto& [name, tensor] : a.tensors)
    if (!at::equal(tensor.nan_to_num(77), b.tensors.at(name).nan_to_num(77)))
      return ::testing::AssertionFailure() << name << " differs";
  return ::testing::AssertionSuccess();
}

}  // namespace nsa::train::graph_steps
