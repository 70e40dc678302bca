// What was found where a value is not finite: the answer of the watch (finite_watch.hpp) and of the locator
// (finite_locator.hpp), in words and as evidence.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reports/json.hpp"
#include "suites/probes/stages.hpp"

namespace suites::probes {

struct NonFinite {
  bool backward = false;
  Stage stage;                       // where it was first seen; backward: the stage whose gradient was first bad
  std::string parameter;             // backward, and no stage: the parameter whose gradient is bad
  std::string op;                    // "aten::_softmax"; "" when no operation was caught making it
  bool ops_watched = true;           // whether operations were looked at (the locator) or not (the watch)
  std::string node;                  // backward: the autograd node that ran it, "SoftmaxBackward0"
  std::string forward_op;            // backward: the forward operation that the node differentiates
  std::string forward_stage;         // backward: the stage that this forward operation was on the way to
  std::vector<std::int64_t> rows;    // all bad rows, ascending; tokens, but blocks for compressed keys and values
  std::int64_t row = -1, head = -1;  // of the first bad value
  std::int64_t document = 0;         // of `row`, and its place in it, for a packed batch
  std::int64_t row_in_document = -1;
  std::int64_t allowed_keys = -1;  // keys that this row may see in this branch; -1: not a row of a branch
  bool only_empty_rows = false;    // every bad row is one that may see no key at all
  std::string value;               // "NaN", "Infinity", "-Infinity"; the watch sees magnitudes

  // Fills what follows from `stage` and `rows` (first row, document, keys) for a tensor of `count` rows.
  void place(const RowMap& map, std::int64_t count);
  [[nodiscard]] std::string describe() const;  // one sentence
  [[nodiscard]] reports::Json evidence() const;
};

// The finding code that says most about it: kEmptyRowNan, kNonFiniteForward or kNonFiniteBackward.
[[nodiscard]] std::string_view code_of(const NonFinite& found);

}  // namespace suites::probes
