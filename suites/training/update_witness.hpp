// A second AdamW for one parameter, in fp64 and without the trainer: from the gradients that arrive at the parameter,
// the schedule and the clipping rule it says where the parameter must be after every step. It shows whether the rate
// that is reported is applied, once, with the moments of all steps before it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "nsa/config.hpp"
#include "nsa/train/trainer.hpp"

namespace suites::training_cases {

// What one step did to the parameter.
struct Update {
  std::int64_t step = 0;
  double error = 0;    // largest distance of an element from where it must be, in units of `allowed`: 1 is too far
  double applied = 0;  // the rate that explains the step best; coarse for 16-bit parameters
};

// A way to update: AdamW, or what a mistake makes of it.
struct UpdateRule {
  std::string what;                                   // of a mistake: "there is no weight decay"
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  // torch's defaults
  double decay = 1, rate = 1;                         // times those of the configuration and of the step
  bool decay_is_decoupled = true, corrects_bias = true, keeps_moments = true;
  // By the norm of all gradients; not; by the tensor's own norm; also what is below the bound, which is scaled
  // up to it.
  enum class Clipping { whole, none, alone, always } clipping = Clipping::whole;
  double clears_until = kAlways;  // the last step, from 0, before which gradients are cleared
  static constexpr double kAlways = std::numeric_limits<double>::infinity();
};

class UpdateWitness {
 public:
  // `parameter` gets a hook for as long as this lives. The trainer must keep fp32 copies of 16-bit parameters (then the
  // parameter is within one of its roundings), and accumulate nothing in 16 bits: see can_watch.
  UpdateWitness(at::Tensor parameter, const nsa::TrainConfig& config);
  ~UpdateWitness();
  UpdateWitness(const UpdateWitness&) = delete;
  UpdateWitness& operator=(const UpdateWitness&) = delete;
  [[nodiscard]] static bool can_watch(const nsa::TrainConfig& config);

  // After a step that made its update.
  Update after(const nsa::train::StepReport& made);
  // After a step that was stopped: its gradients are forgotten.
  void forget();

  // The mistakes that explain every update so far as AdamW explains a right one, in words.
  [[nodiscard]] std::vector<std::string> mistakes() const;

 private:
  // The gradient of a step, fp64 on the CPU: as it arrives, times `shrunk` (the clipping of all gradients together),
  // clipped by its own norm, and scaled to the bound; or all undefined.
  struct Arrived {
    at::Tensor whole, clipped, alone, always;
    double shrunk = 1;
  };
  // Where the parameter is by one rule. All fp64, on the CPU.
  struct Followed {
    UpdateRule rule;
    at::Tensor expected, exp_avg, exp_avg_sq, gradient;  // gradient: of all steps so far, where none is cleared
    double updates = 0, seen = 0;                        // since the moments began; steps with a gradient
    double worst = 0;                                    // error so far
    at::Tensor step(const Arrived& arrived, double lr, double weight_decay);  // its direction
  };
  at::Tensor parameter_;
  nsa::TrainConfig config_;
  unsigned hook_ = 0;
  at::Tensor gradient_;           // of this step so far; undefined before the first
  at::Tensor captured_;           // the same of a captured step: each replay writes its own into it
  bool capture_is_over_ = false;  // what arrives in a capture now is of another one
  at::Tensor last_;               // fp64, on the CPU: where the parameter was
  Followed wanted_;
  std::vector<Followed> mistakes_;
};

}  // namespace suites::training_cases
