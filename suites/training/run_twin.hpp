// The figures of a run, computed a second time from what was seen of it: the model's own forward and backward with the
// weights before each step, and AdamW's moments in fp64 from the gradients.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "nsa/config.hpp"
#include "nsa/model/lm.hpp"
#include "suites/training/run_witness.hpp"

namespace suites::training_cases {

struct Moments {
  at::Tensor exp_avg, exp_avg_sq;  // fp64, on the model's device
  std::int64_t updates = 0;        // steps that gave the parameter a gradient: under NSA_FORCE_BRANCH not all do
};

// Of one step, or of one validation: the mean over all its predictions, and how many they are.
struct LossOf {
  double loss = 0;  // nats a prediction
  std::int64_t predictions = 0;
};
// Of batches with these losses: each counts as often as it predicts.
[[nodiscard]] LossOf mean_of(const std::vector<double>& losses, const std::vector<PlainBatch>& batches);

// How the gates of a pass stand: of each token and group the three are taken as shares of their sum.
struct GateFigures {
  double entropy_mean = 0, entropy_min = 0, largest = 0;
  double collapsed = 0;  // share of those whose largest is above 0.9
  std::array<double, 3> shares = {};
  std::map<std::string, double> entropy_of_layer;  // "layers.0"
};

class RunTwin {
 public:
  RunTwin(const nsa::Config& config, at::Device device);

  // The next step: loss and gradient norm with the weights before it; the moments go on.
  struct Step {
    LossOf of;
    double grad_norm = 0;
    std::vector<double> by_batch;  // loss of each accumulated batch
    GateFigures gates;             // of the last of them
  };
  Step step(const SeenStep& seen);
  [[nodiscard]] const std::map<std::string, Moments>& moments() const { return moments_; }  // after the last step

  // Of each batch, without gradients, with these weights.
  [[nodiscard]] std::vector<double> losses(const Weights& weights, const std::vector<PlainBatch>& batches);
  // Of all of them, each document of a packed batch by itself: what the batch's borders promise.
  [[nodiscard]] LossOf loss_of_documents(const Weights& weights, const std::vector<PlainBatch>& batches);

 private:
  void take(const Weights& weights);
  void update_moments(double factor);

  nsa::TrainConfig config_;
  at::Device device_;
  nsa::LanguageModel model_;
  std::map<std::string, Moments> moments_;
};

}  // namespace suites::training_cases
