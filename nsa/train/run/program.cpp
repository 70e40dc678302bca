#include "nsa/train/run/program.hpp"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <system_error>

#include "base/streams.hpp"
#include "nsa/train/run/follower.hpp"
#include "nsa/train/run/session.hpp"
#include "nsa/train/run/together.hpp"

namespace nsa::train {

namespace {

// The rank that leads, or the only one.
ExitCode lead(const Options& options, const Config& config, const StopSignals& signals, const Rank& rank,
              const std::vector<std::string>& arguments, const Seams& seams) {
  TrainingFolder folder(options.out, options.force    ? TrainingFolder::Mode::force
                                     : options.resume ? TrainingFolder::Mode::resume
                                                      : TrainingFolder::Mode::fresh);
  Session session(options, signals, folder, rank, make_training(config, options, rank, seams));
  return session.run(arguments);
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
    if (rank.leads()) return lead(options, config, signals, rank, arguments, seams);
    return Follower(options, signals, rank, make_training(config, options, rank, seams)).run();
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

struct Failure {
  ExitCode code;
  std::string message;
};

// What the exception that is being handled means.
Failure explain() {
  try {
    throw;
  } catch (const UsageError& error) {
    return {ExitCode::usage, error.what()};
  } catch (const ConfigInvalid& error) {
    return {ExitCode::usage, fmt::format("{} mistake(s) in the configuration:\n{}", error.errors.size(), error.what())};
  } catch (const FlagInvalid& error) {
    return {ExitCode::usage, error.what()};
  } catch (const Unsupported& error) {
    return {ExitCode::usage, error.what()};
  } catch (const StateMismatch& error) {
    return {ExitCode::usage, fmt::format("the checkpoint is {}", error.what())};
  } catch (const parallel::PeerDied& error) {
    return {ExitCode::peer, error.what()};
  } catch (const parallel::Timeout& error) {
    return {ExitCode::hung, error.what()};
  } catch (const parallel::WeightsDiffer& error) {
    return {ExitCode::infrastructure, error.what()};
  } catch (const parallel::Disagreement& error) {
    return {ExitCode::usage, error.what()};
  } catch (const parallel::RankTwice& error) {
    return {ExitCode::usage, error.what()};
  } catch (const parallel::Error& error) {
    return {ExitCode::infrastructure, error.what()};
  } catch (const DataError& error) {
    return {ExitCode::infrastructure, error.what()};
  } catch (const FileError& error) {
    return {ExitCode::infrastructure, error.what()};
  } catch (const std::filesystem::filesystem_error& error) {
    return {ExitCode::infrastructure, error.what()};
  } catch (const DeviceError& error) {
    return {ExitCode::infrastructure, error.what()};
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    // torch's allocators tell of memory by words alone: those of a GPU begin with its name.
    const bool machine =
        text.find("CUDA") != std::string::npos || text.find("DefaultCPUAllocator") != std::string::npos;
    return {machine ? ExitCode::infrastructure : ExitCode::internal, text};
  } catch (const std::bad_alloc&) {
    return {ExitCode::infrastructure, "there is not enough memory for this run"};
  } catch (const std::system_error& error) {  // a thread that could not be started, say
    return {ExitCode::infrastructure, error.what()};
  } catch (const std::exception& error) {
    return {ExitCode::internal, error.what()};
  }
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
