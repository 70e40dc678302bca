// A stream read ahead by a thread of its own, so that a step does not wait for the disk.
#pragma once

#include <cstdint>
#include <memory>

#include "nsa/train/batch.hpp"

namespace nsa::train {

struct PrefetchOptions {
  std::int64_t depth = 4;  // batches held ready, at least 1
  double timeout_s = 60;   // the longest wait for a batch, the first one included
};

// Seconds a batch, over the last 1024 of `count`; zeros when count is 0.
struct FetchTimes {
  std::int64_t count = 0;
  double p50_s = 0, p95_s = 0, max_s = 0;
};

// position() and seek() are the consumer's: what was read ahead and not taken is read again after a resume. One thread
// calls next(), position() and seek(); the times may be asked from any.
class Prefetch : public BatchStream {
 public:
  // Throws std::invalid_argument for a depth below 1 and a timeout that is not in (0, 1e6].
  explicit Prefetch(std::unique_ptr<BatchStream> source, PrefetchOptions options = {});
  // Waits for the thread, but for no longer than the timeout: one that hangs in a read is left behind with its source.
  ~Prefetch() override;

  // Throws what the source threw, in its turn and again at every later call, until seek(). Throws std::runtime_error
  // when no batch came within the timeout; a later call waits again for the same batch.
  Batch next() override;
  [[nodiscard]] nlohmann::json position() const override;
  // Throws std::runtime_error when the thread hangs in a read for longer than the timeout.
  void seek(const nlohmann::json& position) override;

  [[nodiscard]] FetchTimes waited() const;  // by the caller of next()
  [[nodiscard]] FetchTimes read() const;    // by the source, in the thread

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace nsa::train
