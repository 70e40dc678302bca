#include "suites/training/run_witness.hpp"

#include <ATen/ATen.h>

#include "nsa/train/hash.hpp"
#include "suites/training/cases.hpp"

namespace suites::training_cases {

using nsa::train::Batch;
using nsa::train::BatchStream;
using nsa::train::Split;

// A stream with somebody listening.
class RunWitness::Ear : public BatchStream {
 public:
  Ear(std::shared_ptr<BatchStream> source, Split split, RunWitness& witness)
      : source_(std::move(source)), split_(split), witness_(witness) {}
  Batch next() override {
    Batch batch = source_->next();
    witness_.consumed(split_, batch);
    return batch;
  }
  [[nodiscard]] nlohmann::json position() const override { return source_->position(); }
  void seek(const nlohmann::json& position) override {
    source_->seek(position);
    witness_.begins_anew(split_);
  }

 private:
  std::shared_ptr<BatchStream> source_;
  Split split_;
  RunWitness& witness_;
};

nsa::train::Seams RunWitness::next_start() {
  ++start_;
  coming_ = {};
  nsa::train::Seams seams;
  seams.model = [this](nsa::LanguageModel& model) { model_ = model; };
  seams.data = [this](std::shared_ptr<BatchStream> stream, Split split) -> std::shared_ptr<BatchStream> {
    if (change_) stream = change_(std::move(stream), split, start_);
    if (split == Split::train) stream_ = stream;
    return std::make_shared<Ear>(std::move(stream), split, *this);
  };
  seams.after_step = [this](const nsa::train::Trainer& trainer) { after_step(trainer); };
  return seams;
}

void RunWitness::consumed(Split split, const Batch& batch) {
  if (!batch.tokens.defined()) return;
  if (split == Split::validation) {
    if (steps_.empty()) return;  // no run validates before its first step; the files would tell of it
    if (steps_.back().validations.empty()) steps_.back().validations.emplace_back();
    steps_.back().validations.back().push_back(plain(batch));
    return;
  }
  if (coming_.batches.empty()) coming_.before = copy_weights(*model_);
  coming_.batches.push_back(plain(batch));
}

void RunWitness::begins_anew(Split split) {
  if (split == Split::train) coming_ = {};  // the step is not made, or the run goes on from a checkpoint
  if (split == Split::validation && !steps_.empty()) steps_.back().validations.emplace_back();
}

void RunWitness::after_step(const nsa::train::Trainer& trainer) {
  coming_.start = start_;
  coming_.after = copy_weights(*model_);
  coming_.weights_hash = nsa::train::weights_hash(*model_);
  coming_.position = stream_->position();
  coming_.tokens_seen = trainer.tokens_seen();
  steps_.push_back(std::move(coming_));
  coming_ = {};
}

PlainBatch plain(const Batch& batch) {
  PlainBatch copy;
  for (std::int64_t row = 0; row < batch.tokens.size(0); ++row) copy.rows.push_back(row_of(batch.tokens, row));
  if (batch.cu_seqlens) copy.cu_seqlens = row_of(batch.cu_seqlens->unsqueeze(0), 0);
  return copy;
}

Batch unplain(const PlainBatch& batch) {
  std::vector<at::Tensor> rows;
  for (const auto& row : batch.rows) rows.push_back(at::tensor(row, at::kLong));
  Batch made{.tokens = at::stack(rows), .cu_seqlens = {}};
  if (!batch.cu_seqlens.empty()) made.cu_seqlens = at::tensor(batch.cu_seqlens, at::kInt);
  return made;
}

std::int64_t predicted(const PlainBatch& batch) {
  std::int64_t count = 0;
  for (const auto& row : batch.rows) count += static_cast<std::int64_t>(row.size()) - 1;
  return batch.cu_seqlens.empty() ? count : count + 2 - static_cast<std::int64_t>(batch.cu_seqlens.size());
}

}  // namespace suites::training_cases
