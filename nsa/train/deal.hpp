// How the ranks share the batches of a step. All read the same batches; a batch of R rows gives rank r of N its rows
// r*R/N to (r+1)*R/N - 1, a packed batch goes whole to rank k % N, k its place in the step. So what a step is does not
// depend on the number of ranks.
#pragma once

#include <cstdint>
#include <string>

#include "nsa/config.hpp"
#include "nsa/train/batch.hpp"

namespace nsa::train {

// Its tokens are undefined where the rank has none of batch number `place`.
[[nodiscard]] Batch share_of(const Batch& batch, std::int64_t place, int rank, int size);

// Why this many ranks cannot share such steps evenly: the key, both numbers, and the nearest that fit. "" when they
// can.
[[nodiscard]] std::string deal_refusal(const TrainConfig& config, int size);

}  // namespace nsa::train
