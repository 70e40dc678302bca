#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "suites/training/cases.hpp"

namespace suites::training_cases {

RandomTokens::RandomTokens(std::int64_t vocab, std::uint64_t seed)
    : vocab_(vocab), generator_(at::detail::createCPUGenerator(seed)) {}

at::Tensor RandomTokens::next(std::int64_t batch, std::int64_t length) {
  return at::randint(0, vocab_, {batch, length}, generator_, at::kLong);
}

std::vector<std::int64_t> row_of(const at::Tensor& rows, std::int64_t i) {
  const at::Tensor row = rows[i].to(at::kLong).contiguous();
  return {row.const_data_ptr<std::int64_t>(), row.const_data_ptr<std::int64_t>() + row.numel()};
}

TokenLoss evaluate(nsa::LanguageModelImpl& model, const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  const std::int64_t S = tokens.size(1) - 1;
  const at::Tensor input = tokens.narrow(1, 0, S).to(model.head->weight.device());
  const at::Tensor target = tokens.narrow(1, 1, S).to(input.device());
  const at::Tensor log_p = at::log_softmax(model.forward(input).to(at::kFloat), -1);  // [B,S,V]
  const at::Tensor nll = log_p.gather(2, target.unsqueeze(2)).neg().to(at::kDouble);  // [B,S,1]
  return {nll.mean().item<double>(), nll.std().item<double>(), nll.numel()};
}

}  // namespace suites::training_cases
