// nsa-train as one of several processes: which one, how it starts the others (--nproc), and the group that they form.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "nsa/parallel/group.hpp"
#include "nsa/parallel/world.hpp"
#include "nsa/train/run/activity.hpp"
#include "nsa/train/run/exit_code.hpp"
#include "nsa/train/run/options.hpp"

namespace nsa::train {

// From this process's environment and --nproc. Throws UsageError for what does not fit together.
[[nodiscard]] parallel::World world_of_run(const Options& options);
// --nproc, and this process is none of its ranks yet.
[[nodiscard]] bool is_starter(const Options& options, const parallel::World& world);

// Starts the ranks, this program with the same arguments, and returns how the run ended: with the exit code of the
// first that did not end well for a reason of its own. Signals that ask to stop are passed on. No rank is left.
[[nodiscard]] ExitCode start_ranks(const Options& options, const Config& config);

// What a rank has besides its training.
struct Rank {
  parallel::World world;
  std::shared_ptr<Activity> activity;                           // told by the group too
  std::shared_ptr<parallel::Group> group;                       // null: alone
  std::shared_ptr<bool> may_write;                              // from when on the folder is this run's
  [[nodiscard]] bool leads() const { return world.rank == 0; }  // it has the run's folder
};
// Meets the others. Throws parallel::Error. `seams`: of tests.
[[nodiscard]] Rank join(const parallel::World& world, const Config& config, const Options& options,
                        const parallel::GroupSeams& seams);
// Where a rank writes that has no part in the run's tables: out/ranks/rank_3; the run's folder itself for rank 0.
[[nodiscard]] std::filesystem::path folder_of(const std::filesystem::path& out, int rank);

// Threads of a rank: its part of the cores that it may use, unless OMP_NUM_THREADS says otherwise.
void share_cores(const parallel::World& world);

}  // namespace nsa::train
