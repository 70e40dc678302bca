// The vocabulary of the model's observed stages (Runtime::observe, "layers.3.attention.sel.o"): which layer and branch
// a name belongs to, which dimensions of the tensor are token and head, how many keys a row of a branch may see, and
// how to look at the stages for a while.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "nsa/model/runtime.hpp"

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

// What the rows of a pass mean.
struct RowMap {
  nsa::Geometry geometry;
  std::int64_t S = 0;         // tokens of the pass
  nsa::CuSeqlens cu_seqlens;  // documents of a packed batch; may go on behind S

  // The document of row t and t's place in it; {0, t} without cu_seqlens.
  struct Place {
    std::int64_t document = 0, row = 0;
  };
  [[nodiscard]] Place place(std::int64_t t) const;
  // allowed_keys for row t of the batch; -1 when a stage with `rows` rows has no tokens there, or has no branch.
  [[nodiscard]] std::int64_t allowed(const Stage& stage, std::int64_t rows, std::int64_t t) const;
};

// Lets `observer` see every stage of a model's passes for as long as this lives, beside whoever looked before.
class Observing {
 public:
  using Observer = std::function<void(std::string_view name, const at::Tensor& value)>;
  Observing(nsa::Runtime& runtime, Observer observer);
  ~Observing();
  Observing(const Observing&) = delete;
  Observing& operator=(const Observing&) = delete;

 private:
  nsa::Runtime& runtime_;
  Observer before_;
};

}  // namespace suites::probes
