// Batches of the documents of a JSONL file, end to end, in the order of the file.
#pragma once

#include <cstdint>
#include <vector>

#include "nsa/train/epochs.hpp"
#include "nsa/train/jsonl_rows.hpp"

namespace nsa::train {

class JsonlStream : public PassStream {
 public:
  // Throws as open_stream.
  explicit JsonlStream(const StreamOptions& options);
  Batch next() override;
  [[nodiscard]] nlohmann::json position() const override;
  void seek(const nlohmann::json& position) override;
  void begin_pass(std::int64_t epoch) override;

 private:
  std::vector<JsonlRows::Row> take_batch();  // rows of one length; none at the end of the data

  StreamOptions options_;
  JsonlRows rows_;
  nlohmann::json identity_;
  JsonlRows::Place position_;  // of the next batch
  bool there_ = true;  // the rows go on at position_; false after an exception and before a row to be taken again
};

}  // namespace nsa::train
