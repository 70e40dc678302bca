// The loss of a model on data that it does not train on.
#pragma once

#include <cstdint>
#include <functional>

#include "nsa/model/lm.hpp"
#include "nsa/parallel/group.hpp"
#include "nsa/train/batch.hpp"

namespace nsa::train {

struct Evaluation {
  double loss = 0;  // nats a prediction, mean over all predictions
  std::int64_t tokens = 0, batches = 0;
};

// The next `batches` of the stream, fewer at its end, in eval mode and without gradients; the model is in the mode
// afterwards that it was in before. `each` is called after every batch. Throws std::runtime_error when the stream has
// none at all.
[[nodiscard]] Evaluation evaluate(LanguageModel model, BatchStream& stream, std::int64_t batches,
                                  const std::function<void()>& each = {}, parallel::Group* group = nullptr);

// Tokens that the loss of a batch predicts: all but the first of each row, and of each document.
[[nodiscard]] std::int64_t predictions(const Batch& batch);

}  // namespace nsa::train
