// Random tokens: independent and uniform over the vocabulary, from a generator of the stream's own.
#pragma once

#include "nsa/train/stream.hpp"

namespace nsa::train {

class SyntheticStream : public BatchStream {
 public:
  explicit SyntheticStream(const StreamOptions& options);
  Batch next() override;
  [[nodiscard]] nlohmann::json position() const override;
  void seek(const nlohmann::json& position) override;

 private:
  StreamOptions options_;
  nlohmann::json identity_;
  std::uint64_t state_;
};

}  // namespace nsa::train
