// Who else uses the CPUs, over about a second: how much of them, and the processes that use most. What it costs a
// timing is judged at each timing (harness/load_watch.hpp); this is said before anything is timed.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/load.hpp"
#include "suites/machine/inspection.hpp"

namespace suites::machine {

struct BusyProcess {
  pid_t pid = 0;
  std::string name;
  double cores = 0;  // cores' worth of time
};

struct LoadState {
  base::Load load;                     // as this process sees it, its family among the others
  double family_cores = 0;             // used by the rest of this run: its supervisor, a worker that starts
  std::vector<BusyProcess> processes;  // not of this run, the busiest first; those of another container do not show

  // Used by anybody but this run.
  [[nodiscard]] double others_cores() const;
};

struct LoadPlaces {
  std::filesystem::path proc = "/proc";
  base::LoadSources sources = {};
  pid_t self = 0, root = 0;         // of this run; 0: this process, and its supervisor if it has one
  std::function<void()> wait = {};  // between two looks; empty: a second
};
[[nodiscard]] LoadState look_at_load(LoadPlaces places = {});

// A warning when others use a quarter of the CPUs' time or more.
[[nodiscard]] Inspection judge_load(const LoadState& state);

}  // namespace suites::machine
