// What a wrong pass over the data is the right answer to: the mistake that reads it so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nsa/train/stream.hpp"
#include "suites/training/plain_data.hpp"

namespace suites::training_cases {

using Batches = std::vector<PlainBatch>;
using Row = std::vector<std::int64_t>;
using Rows = std::vector<Row>;
[[nodiscard]] Rows rows_of(const Batches& batches);

// The mistake by which a stream with these options gives the pass `read` where `wanted` is due, in words without a full
// stop ("validation were trained on"); "" where none that is known does.
[[nodiscard]] std::string mistake_in_pass(const nsa::train::StreamOptions& options, const PlainData& data,
                                          const Batches& wanted, const Batches& read);

}  // namespace suites::training_cases
