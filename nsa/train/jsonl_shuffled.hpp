// The rows of a JSONL file (those of JsonlStream) in an order that seed and pass decide.
//
// Where a row begins is known only to who has read what is before it. So the file is read once when it is opened, and
// the places of its rows are kept: of all of them up to kPlaces, of every second, fourth, ... row of a larger file, so
// that the memory is bounded; the rows between two places are then read over.
#pragma once

#include <cstdint>
#include <vector>

#include "nsa/train/epochs.hpp"
#include "nsa/train/jsonl_rows.hpp"

namespace nsa::train {

class ShuffledJsonl : public PassStream {
 public:
  static constexpr std::size_t kPlaces = 1 << 20;

  // Throws as open_stream, and std::runtime_error for a bad line anywhere in the file. `places`: at most as many.
  explicit ShuffledJsonl(const StreamOptions& options, std::size_t places = kPlaces);
  Batch next() override;
  [[nodiscard]] nlohmann::json position() const override;
  void seek(const nlohmann::json& position) override;
  void begin_pass(std::int64_t epoch) override;

 private:
  void find_rows(std::size_t places);
  JsonlRows::Row row(std::int64_t index);

  StreamOptions options_;
  JsonlRows rows_;
  nlohmann::json identity_;
  std::vector<JsonlRows::Place> places_;  // of row 0, stride, 2 stride, ...
  std::int64_t stride_ = 1;
  std::int64_t whole_ = 0;           // rows of S+1 tokens
  bool has_rest_ = false;            // a shorter one after them, which stays the last
  std::int64_t skipped_ = 0;         // bad lines in the file
  std::int64_t epoch_ = 0, at_ = 0;  // rows of this pass that were given
};

}  // namespace nsa::train
