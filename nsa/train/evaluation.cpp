#include "nsa/train/evaluation.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <stdexcept>

namespace nsa::train {

namespace {

// Eval mode for as long as it lives.
class EvalMode {
 public:
  explicit EvalMode(LanguageModel model) : model_(std::move(model)), was_training_(model_->is_training()) {
    model_->eval();
  }
  ~EvalMode() { model_->train(was_training_); }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  LanguageModel model_;
  bool was_training_;
};

}  // namespace

std::int64_t predictions(const Batch& batch) {
  std::int64_t count = batch.tokens.size(0) * (batch.tokens.size(1) - 1);
  if (!batch.cu_seqlens) return count;
  for (const auto& [begin, end] : documents(batch.cu_seqlens, batch.tokens.size(1)))
    if (begin > 0 && begin < end) --count;
  return count;
}

Evaluation evaluate(LanguageModel model, BatchStream& stream, std::int64_t batches, const std::function<void()>& each,
                    parallel::Group* group) {
  const at::NoGradGuard no_grad;
  const EvalMode eval_mode(model);
  const at::Device device = model->parameters().front().device();
  Evaluation evaluation;
  double sum = 0;
  while (evaluation.batches < batches) {
    const Batch batch = stream.next();
    if (!batch.tokens.defined()) break;
    const std::int64_t tokens = predictions(batch);
    if (group == nullptr || evaluation.batches % group->size() == group->rank())
      sum += model->loss(batch.tokens.to(device), batch.cu_seqlens).item<double>() * static_cast<double>(tokens);
    evaluation.tokens += tokens;
    ++evaluation.batches;
    if (each) each();
  }
  if (evaluation.batches == 0) throw std::runtime_error("the validation split holds no batch");
  if (group != nullptr) {
    at::Tensor all = at::full({1}, sum, at::TensorOptions().dtype(at::kDouble).device(device));
    group->sum(all, "validation");
    sum = all.item<double>();
    group->check();  // a GPU's sum that was broken off is no sum
  }
  evaluation.loss = sum / static_cast<double>(evaluation.tokens);
  return evaluation;
}

}  // namespace nsa::train
