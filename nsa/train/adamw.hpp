// AdamW (Loshchilov & Hutter 2019) with torch's default betas and epsilon, over a fixed list of parameters.
//
// Parameters of 16 bits are updated through fp32 copies (master weights): bf16 has steps of 0.8 % near 1, so that an
// update of lr = 2e-4 to a norm's weight would be rounded away for ever, and so would the slow decay of the second
// moment. Without them parameters and moments stay in 16 bits, 4 bytes a parameter instead of 12: what torch's
// optimizer does with a cast model, kept to compare with.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nsa/model/runtime.hpp"

namespace nsa::train {

class AdamW {
 public:
  using State = std::map<std::string, at::Tensor>;

  AdamW(std::vector<at::Tensor> parameters, double weight_decay, bool master_weights = true);  // named "0", "1", ...
  // `runtime`: whose flags let our own kernels update (NSA_FUSED_UPDATE), and whose record is told ("update"). Null:
  // ATen's functions do.
  AdamW(const torch::nn::Module& module, double weight_decay, bool master_weights,
        std::shared_ptr<const Runtime> runtime);
  // One update with the gradients that the parameters hold; a parameter without one is left alone, moments included.
  // Throws std::invalid_argument for a gradient of another shape or device, before anything is changed.
  void step(double lr);
  // The same without a word from the host, so that a CUDA graph can hold it: scalars on the parameters' device. `lr` is
  // fp32 on a GPU, where the kernel takes no other, and of any floating type on the CPU. `skip` is fp32: where it is 1
  // nothing changes, neither parameters nor moments nor counts of updates, bit for bit; else it is 0. (A 16-bit
  // parameter is written from its fp32 copy in any case, which changes only what somebody set apart from its copy.)
  void step(const at::Tensor& lr, const at::Tensor& skip);
  // global_norm (gradients.hpp) of the gradients; by our own kernels, where they serve them and no flag is against it,
  // summed in another order.
  [[nodiscard]] at::Tensor gradient_norm() const;
  // clip_to_norm (gradients.hpp) of the gradients and step() behind it: in one pass over memory by our own kernels
  // (cuda/update.hpp), where they serve the parameters and no flag is against it, else one after the other, to the bit.
  // By the kernels the numbers differ in rounding alone, and `skip` leaves clipped gradients alone as well.
  void clipped_step(double norm, double max_norm, double lr);
  void clipped_step(const at::Tensor& norm, double max_norm, const at::Tensor& lr, const at::Tensor& skip);

  // All that the next update depends on besides parameters, gradients and the arguments: "exp_avg/NAME",
  // "exp_avg_sq/NAME" (the parameter's shape; fp32, or the parameter's dtype where there is no copy), "step/NAME"
  // (updates so far, an fp32 scalar) and "master/NAME" (the fp32 copies of 16-bit parameters). The optimizer's own
  // tensors, not copies: the next step() changes them.
  [[nodiscard]] State state() const;
  // Copies the values in. Throws std::invalid_argument naming everything that is missing, unknown or of another shape
  // or dtype, and then changes nothing. Parameters are not touched: they must be those of the same moment.
  void load(const State& state);

 private:
  // What takes part in an update, by kind: for kernels that take many parameters a launch.
  struct Lists {
    std::vector<at::Tensor> parameters, gradients, masters, exp_avg, exp_avg_sq, steps;
  };
  [[nodiscard]] Lists lists() const;
  [[nodiscard]] std::string flag_against_kernels() const;
  // Counts the update, where it is not skipped.
  void count(const Lists& all, const std::optional<at::Tensor>& skip) const;
  template <typename Rate>
  void update(Lists all, const Rate& lr, const std::optional<at::Tensor>& skip);
  template <typename Norm, typename Rate>
  void clip_and_update(const Norm& norm, double max_norm, const Rate& lr, const std::optional<at::Tensor>& skip);

  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> masters_;  // what is updated: the parameter itself, or its fp32 copy
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
  std::vector<at::Tensor> steps_;
  double weight_decay_;
  std::shared_ptr<const Runtime> runtime_;
};

}  // namespace nsa::train
