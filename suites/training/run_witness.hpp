// What really happened while nsa-train ran: the batches that its steps and validations consumed, and the weights before
// and after every step. Seen through the program's seams, counted here, and nothing of it taken from what it writes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nsa/train/run/training.hpp"
#include "suites/training/plain_data.hpp"
#include "suites/training/stops.hpp"

namespace suites::training_cases {

struct SeenStep {
  int start = 0;                                     // which start of the program: 0, 1, ...
  std::vector<PlainBatch> batches;                   // consumed since the step before
  std::vector<std::vector<PlainBatch>> validations;  // after this step, each from where it sought on
  Weights before, after;                             // when the first batch was asked for, and after the update
  std::string weights_hash;                          // after
  nlohmann::json position;                           // of the stream, after
  std::int64_t tokens_seen = 0;                      // as the trainer counts them
};

using StreamChange = std::function<std::shared_ptr<nsa::train::BatchStream>(std::shared_ptr<nsa::train::BatchStream>,
                                                                            nsa::train::Split, int start)>;

class RunWitness {
 public:
  // `change` makes another stream of the product's, and the witness sees what comes of it. For tests.
  explicit RunWitness(StreamChange change = {}) : change_(std::move(change)) {}
  RunWitness(const RunWitness&) = delete;  // streams and seams refer to it
  RunWitness& operator=(const RunWitness&) = delete;

  // For the next start of the program, which must end before the witness does.
  [[nodiscard]] nsa::train::Seams next_start();
  [[nodiscard]] const std::vector<SeenStep>& steps() const { return steps_; }
  [[nodiscard]] const SeenStep& unfinished() const { return coming_; }  // batches of a step that came to nothing

 private:
  class Ear;
  void consumed(nsa::train::Split split, const nsa::train::Batch& batch);
  void begins_anew(nsa::train::Split split);
  void after_step(const nsa::train::Trainer& trainer);

  StreamChange change_;
  nsa::LanguageModel model_{nullptr};
  std::shared_ptr<nsa::train::BatchStream> stream_;  // of training
  int start_ = -1;
  SeenStep coming_;  // the step that is being made
  std::vector<SeenStep> steps_;
};

// Tokens and borders as they are.
[[nodiscard]] PlainBatch plain(const nsa::train::Batch& batch);
[[nodiscard]] nsa::train::Batch unplain(const PlainBatch& batch);
// Tokens that a batch predicts: of each row, or of each of its documents, all but the first.
[[nodiscard]] std::int64_t predicted(const PlainBatch& batch);

}  // namespace suites::training_cases
