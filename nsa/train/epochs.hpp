// Data that is read more than once: pass after pass (an epoch each) over the same rows, every row once a pass. What is
// left over at the end of a pass comes as smaller batches there, as at the end of the data; rows and batches of a pass
// do not depend on how many passes follow it.
#pragma once

#include <cstdint>
#include <memory>

#include "nsa/train/batch.hpp"

namespace nsa::train {

// A stream that can begin again.
class PassStream : public BatchStream {
 public:
  // Stands before the first batch of pass `epoch` (0, 1, ...), which decides the order where it is shuffled.
  virtual void begin_pass(std::int64_t epoch) = 0;
};

class Epochs : public BatchStream {
 public:
  // `epochs` passes over the source, without an end when it is 0. A source without a batch ends at once.
  Epochs(std::unique_ptr<PassStream> source, std::int64_t epochs);
  Batch next() override;
  // The source's with "epoch"; one without it is of the first pass.
  [[nodiscard]] nlohmann::json position() const override;
  void seek(const nlohmann::json& position) override;

 private:
  std::unique_ptr<PassStream> source_;
  std::int64_t epochs_, epoch_ = 0;
};

}  // namespace nsa::train
