// The vocabulary of the model's observed stages (Runtime::observe, "layers.3.attention.sel.o"): which layer and branch
// a name belongs to, which dimensions of the tensor are token and head, and how many keys a row of a branch may see.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "nsa/config.hpp"

namespace suites::probes {

struct Stage {
  std::string name;         // as observed
  std::int64_t layer = -1;  // -1: outside the layers (embedding, head, loss)
  std::string branch;       // "cmp", "sel", "win"; "" when it belongs to none
};
[[nodiscard]] Stage parse_stage(std::string_view name);

// A log-sum-exp, in which -inf is the right answer for a row that sees nothing.
[[nodiscard]] bool is_lse(std::string_view stage);

// Dimensions of a stage's tensor: [B,S,H,D] and [B,S,D], but [B,H,S] for a log-sum-exp. -1: has none.
struct StageLayout {
  std::int64_t row = -1, head = -1;
};
[[nodiscard]] StageLayout stage_layout(std::string_view stage, std::int64_t dimensions);

// Keys (cmp: complete blocks) that query row t of one document may attend to; sel: the tokens of the blocks that are
// always chosen, at least. -1 for an unknown branch.
[[nodiscard]] std::int64_t allowed_keys(std::string_view branch, const nsa::Geometry& geometry, std::int64_t t);

}  // namespace suites::probes
