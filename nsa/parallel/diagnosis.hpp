// Where every rank stands when a wait did not end, and what follows from it. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nsa/parallel/group.hpp"

namespace nsa::parallel {

// Why the ranks end, as the first of them that saw it wrote it into the store.
struct Trouble {
  std::string
      kind;  // "failed": by its own word; "died": seen by the starter; "twice"; "waits": who asks for all states
  std::vector<int> ranks;  // whose; none: not known
  std::string why;
};
[[nodiscard]] std::string to_text(const Trouble& trouble);
[[nodiscard]] Trouble trouble_of(const std::string& text);

struct RankState {
  int rank = 0;
  bool answered = false;                 // the rest only then
  std::string doing;                     // its phase
  std::optional<CollectiveRecord> open;  // the collective that it is in
  bool sent = false;                     // it has done its own part of it, and waits for the others
  std::optional<CollectiveRecord> last;  // that it began
  std::string stacks;
  std::vector<CollectiveRecord> records;
};
[[nodiscard]] std::string to_text(const RankState& state);
[[nodiscard]] RankState state_of(int rank, const std::string& text);  // not answered where the text is none

struct Diagnosis {
  std::string what;
  std::vector<int> culprits;
};
// `waited`: the collective in which `rank` waited for `seconds`.
[[nodiscard]] Diagnosis diagnose(int rank, const CollectiveRecord& waited, double seconds,
                                 const std::vector<RankState>& states);
// Collectives and stacks of all, for a file.
[[nodiscard]] std::string full_text(const std::string& what, const std::vector<RankState>& states);

}  // namespace nsa::parallel
