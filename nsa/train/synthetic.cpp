#include "nsa/train/synthetic.hpp"

#include <ATen/ops/empty.h>

#include "base/random.hpp"
#include "nsa/train/position.hpp"

namespace nsa::train {

SyntheticStream::SyntheticStream(const StreamOptions& options)
    : options_(options), state_(base::mixed(options.seed) + (options.split == Split::train ? 0 : 1)) {
  identity_ = {{"data", "synthetic"},
               {"vocab", options.vocab},
               {"split", options.split == Split::train ? "train" : "validation"},
               {"seq_len", options.seq_len},
               {"seed", options.seed}};
}

Batch SyntheticStream::next() {
  Batch batch{.tokens = at::empty({options_.batch_size, options_.seq_len + 1}, at::kLong), .cu_seqlens = {}};
  auto* token = batch.tokens.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < batch.tokens.numel(); ++i)
    token[i] = static_cast<std::int64_t>(base::next_below(state_, static_cast<std::uint64_t>(options_.vocab)));
  return batch;
}

nlohmann::json SyntheticStream::position() const {
  nlohmann::json position = identity_;
  position["generator"] = state_;
  return position;
}

void SyntheticStream::seek(const nlohmann::json& position) {
  check_identity(identity_, position);
  state_ = state_at(position, "generator");
}

}  // namespace nsa::train
