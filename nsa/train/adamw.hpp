// AdamW (Loshchilov & Hutter 2019) with torch's default betas and epsilon, over a fixed list of parameters.
//
// Parameters of 16 bits are updated through fp32 copies: bf16 has steps of 0.8 % near 1, so that an update of lr = 2e-4
// to a norm's weight would be rounded away for ever, and so would the slow decay of the second moment.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace nsa::train {

class AdamW {
 public:
  AdamW(std::vector<at::Tensor> parameters, double weight_decay);
  // One update with the gradients that the parameters hold; a parameter without one is left alone, moments included.
  void step(double lr);

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> masters_;  // what is updated: the parameter itself, or its fp32 copy
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;
  std::vector<at::Tensor> steps_;  // updates so far; fp32 scalars beside the parameter
  double weight_decay_;
};

}  // namespace nsa::train
