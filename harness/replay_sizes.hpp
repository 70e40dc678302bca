// `replay --minimize`: which settings are sizes that a case obeys (Program::sizes), how they are tried (minimise.hpp),
// and what is left of it: a table, a smaller command, a smaller bundle.
#pragma once

#include <filesystem>

#include "harness/interrupts.hpp"
#include "harness/replay.hpp"

namespace harness {

struct ReplayPlaces {
  std::filesystem::path bundle;  // its file; the minimised one is put beside it
  std::filesystem::path folder;  // where the tries are made
  double limit_s = 600;          // for all of them
  bool quiet = false;            // no line for each
};

// Of a failure that was shown again. Returns the signal that stopped it, 0 for none: the best so far is kept then too.
int minimise_replay(const Program& program, const reports::Bundle& bundle, const Replay& replay,
                    const ReplayPlaces& places, Interrupts& interrupts);

}  // namespace harness
