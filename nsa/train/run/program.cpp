#include "nsa/train/run/program.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "base/streams.hpp"
#include "nsa/train/run/failure.hpp"
#include "nsa/train/run/follower.hpp"
#include "nsa/train/run/session.hpp"
#include "nsa/train/run/together.hpp"

namespace nsa::train {

namespace {

TrainingFolder::Mode mode_of(const Options& options) {
  if (options.force) return TrainingFolder::Mode::force;
  return options.resume ? TrainingFolder::Mode::resume : TrainingFolder::Mode::fresh;
}

ExitCode train(const Options& options, const std::vector<std::string>& arguments, const parallel::World& world,
               const Seams& seams) {
  const Config config = configuration(options);
  if (is_starter(options, world)) return start_ranks(options, config);
  using Origin = parallel::World::Origin;
  const StopSignals signals(world.origin == Origin::nproc ? std::optional(::getppid()) : std::nullopt);
  const Rank rank = join(world, config, options, seams.group);
  try {
    if (rank.group) agree_on_arguments(*rank.group, options, config);
    std::optional<TrainingFolder> folder;
    by_first_alone(rank.group.get(), "folder", [&] { folder.emplace(options.out, mode_of(options)); });
    Training training = make_training(config, options, rank, seams);
    if (!rank.leads()) return Follower(options, signals, rank, std::move(training)).run();
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the rank that leads is the one that made the folder
    return Session(options, signals, *folder, rank, std::move(training)).run(arguments);
  } catch (const RunRefused&) {  // the others know
    throw;
  } catch (const std::exception& error) {
    if (rank.group) rank.group->tell_failure(error.what());
    const bool of_ranks = dynamic_cast<const parallel::Error*>(&error) != nullptr;
    if (!of_ranks || !signals.starter_died()) throw;
    // It served the store: whoever asked for it just then could not wait for the end of the step.
    if (rank.leads()) {
      base::err("nsa-train: the process that started the ranks (--nproc) has died: this run stops\n");
      base::out("stopped: reason=starter_died\n");
    }
    return ExitCode::terminated;
  }
}

// A run that could not say how it goes and how it ended is refused before it begins.
void refuse_lost_streams() {
  for (const auto& [stream, fd] : {std::pair{"standard output", STDOUT_FILENO}, {"standard error", STDERR_FILENO}})
    if (const auto why = base::unwritable(fd))
      throw DeviceError(fmt::format("{} cannot be written: {}; nothing was done", stream, *why));
}

ExitCode guarded(int argc, const char* const* argv, const Seams& seams) {
  std::string who = "nsa-train: ";
  try {
    auto options = parse_options(argc, argv);
    if (!options) return ExitCode::finished;
    refuse_lost_streams();
    const parallel::World world = world_of_run(*options);
    if (world.size > 1) who = fmt::format("nsa-train: rank {}: ", world.rank);
    if (world.rank > 0) options->quiet = true;
    return train(*options, {argv + 1, argv + argc}, world, seams);
  } catch (const std::exception&) {
    const Failure failure = explain();
    base::complain(failure.message, who);
    if (seams.failed) seams.failed(failure.message);
    return failure.code;
  }
}

// Output that did not arrive is never success. (What standard error lost was told on standard output meanwhile.)
ExitCode account_for_streams(ExitCode code) {
  const auto out_lost = base::lost(stdout);
  if (out_lost)
    base::err("nsa-train: error: standard output cannot be written: {}; the last line is lost, --resume repeats it\n",
              *out_lost);
  return code == ExitCode::finished && (out_lost || base::lost(stderr)) ? ExitCode::infrastructure : code;
}

}  // namespace

int run_program(int argc, const char* const* argv, const Seams& seams) {
  base::guard_streams();
  return static_cast<int>(account_for_streams(guarded(argc, argv, seams)));
}

}  // namespace nsa::train
