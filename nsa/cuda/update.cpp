#include "nsa/cuda/update.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/kernels/update.hpp"

namespace nsa::cuda {

namespace {

// The number of the host; of the device its place, and the tensor that holds it.
struct Given {
  double value = 0;
  at::Tensor there;

  Given(const Number& number, const at::Tensor& like) {
    if (const auto* known = std::get_if<double>(&number))
      value = *known;
    else
      there = std::get<at::Tensor>(number).to(like.device(), at::kFloat);
  }
  [[nodiscard]] const float* place() const { return there.defined() ? there.const_data_ptr<float>() : nullptr; }
};

}  // namespace

std::string update_refusal(const std::vector<UpdateTensors>& all) {
  if (all.empty()) return "there is no gradient";
  const at::Tensor& first = all.front().parameter;
  if (auto reason = device_refusal(first); !reason.empty()) return reason;
  const auto type = first.scalar_type();
  if (type != at::kBFloat16 && type != at::kHalf)
    return fmt::format("a parameter is {}; served: BFloat16 and Half", c10::toString(type));
  for (const UpdateTensors& t : all) {
    if (t.parameter.scalar_type() != type || t.gradient.scalar_type() != type || t.parameter.device() != first.device())
      return fmt::format("parameters or gradients are not all {} on {}", c10::toString(type), first.device().str());
    if (t.weight.scalar_type() != at::kFloat || t.first.scalar_type() != at::kFloat)
      return "a parameter has no fp32 copy; served: updates through fp32 copies (master weights)";
    for (const at::Tensor* x : {&t.parameter, &t.gradient, &t.weight, &t.first, &t.second})
      if (!x->is_contiguous()) return "a tensor is not dense in the order of its dimensions";
  }
  return "";
}

std::string norm_of_refusal(const std::vector<at::Tensor>& gradients) {
  if (gradients.empty()) return "there is no gradient";
  const at::Tensor& first = gradients.front();
  if (auto reason = device_refusal(first); !reason.empty()) return reason;
  const auto type = first.scalar_type();
  if (type != at::kBFloat16 && type != at::kHalf)
    return fmt::format("a gradient is {}; served: BFloat16 and Half", c10::toString(type));
  for (const at::Tensor& t : gradients) {
    if (t.scalar_type() != type || t.device() != first.device())
      return fmt::format("gradients are not all {} on {}", c10::toString(type), first.device().str());
    if (!t.is_contiguous()) return "a gradient is not dense in the order of its dimensions";
  }
  return "";
}

at::Tensor norm_of(const std::vector<at::Tensor>& gradients) {
  const at::Tensor& like = gradients.front();
  const OnDeviceOf device(like);
  std::vector<kernels::StoredTensor> tensors;
  tensors.reserve(gradients.size());
  for (const at::Tensor& t : gradients) tensors.push_back({t.const_data_ptr(), t.numel()});
  const at::Tensor parts = empty({kernels::norm_parts(tensors)}, at::kFloat, like);
  at::Tensor norm = empty({}, at::kFloat, like);
  kernels::norm_of(tensors, storage_of(like), parts.data_ptr<float>(), norm.data_ptr<float>(), device.stream());
  return norm;
}

void update(const std::vector<UpdateTensors>& all, const UpdateNumbers& numbers) {
  const at::Tensor& like = all.front().parameter;
  const OnDeviceOf device(like);
  const Given rate(numbers.rate, like), norm(numbers.norm, like);
  kernels::Update p;
  p.storage = storage_of(like);
  p.beta1 = numbers.beta1, p.beta2 = numbers.beta2, p.epsilon = numbers.epsilon, p.decay = numbers.decay;
  p.rate = rate.value, p.rate_there = rate.place();
  p.norm = norm.value, p.norm_there = norm.place();
  p.max_norm = numbers.max_norm;
  if (numbers.skip.defined()) p.skip = numbers.skip.const_data_ptr<float>();
  std::vector<kernels::UpdatedTensor> tensors;
  tensors.reserve(all.size());
  for (const UpdateTensors& t : all)
    tensors.push_back({t.parameter.data_ptr(), t.gradient.data_ptr(), t.weight.data_ptr<float>(),
                       t.first.data_ptr<float>(), t.second.data_ptr<float>(), t.step.const_data_ptr<float>(),
                       t.parameter.numel()});
  kernels::update(tensors, p, device.stream());
}

}  // namespace nsa::cuda
