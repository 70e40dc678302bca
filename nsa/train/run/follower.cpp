#include "nsa/train/run/follower.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/stacks.hpp"
#include "base/streams.hpp"
#include "nsa/train/checkpoint.hpp"
#include "nsa/train/evaluation.hpp"
#include "nsa/train/files.hpp"
#include "nsa/train/run/heartbeat.hpp"
#include "nsa/train/run/records.hpp"
#include "nsa/train/run/together.hpp"
#include "nsa/train/run/watchdog.hpp"

namespace nsa::train {

Follower::Follower(const Options& options, const StopSignals& signals, const Rank& rank, Training training)
    : signals_(signals),
      rank_(rank),
      out_(options.out),
      folder_(folder_of(options.out, rank.world.rank)),
      training_(std::move(training)),
      last_step_(options.steps.value_or(training_.config.train.steps)) {
  training_.trainer->on_phase([this](std::string_view name) { rank_.activity->phase(name); });
  if (training_.validation) validation_start_ = training_.validation->position();
}

ExitCode Follower::run() {
  Together together(rank_.group, signals_, out_ / ".HALT");
  Trainer& trainer = *training_.trainer;
  const auto begun = together.told_by_first("begin", nullptr);
  if (begun.contains("refused")) return static_cast<ExitCode>(begun["refused"].get<int>());
  // Rank 0 tells of its own.
  for (const std::string& flag : descriptions(unknown_flags(training_.environment)))
    if (const auto& told = begun.at("unknown_flags"); std::find(told.begin(), told.end(), flag) == told.end())
      base::err("nsa-train: rank {}: {}\n", rank_.world.rank, flag);
  if (const std::string checkpoint = begun.at("checkpoint"); !checkpoint.empty())
    trainer.load(read_checkpoint(out_ / "checkpoints" / checkpoint, [this] { rank_.activity->pulse(); }));
  trainer.compare_with_all(facts_of(training_));
  together.begin(trainer, *training_.dispatcher);  // from here on the folder is this run's

  std::filesystem::create_directories(folder_);
  *rank_.may_write = true;
  base::write_stacks_to(folder_ / "stacks_crash.txt",
                        fmt::format("nsa-train: rank {}: CRASHED; stacks in {} (c++filt makes their names readable)\n",
                                    rank_.world.rank, (folder_ / "stacks_crash.txt").string()));
  rank_.activity->step_made(trainer.steps_made(), 0);
  Heartbeat heartbeat(folder_ / "heartbeat.jsonl", {begun.at("run"), training_.device, *rank_.activity});
  heartbeat.write("boot", {{"rank", rank_.world.rank}, {"last_step", last_step_}});
  const Watchdog watchdog({.hang_s = training_.config.train.hang_timeout_s,
                           .folder = folder_,
                           .hung = [this](const std::string& why) { rank_.group->tell_failure(why); }},
                          *rank_.activity, heartbeat);

  const TrainConfig& train = training_.config.train;
  while (trainer.steps_made() < last_step_) {
    const bool stop_is_wanted = together.wishes(trainer).stop();
    if (stop_is_wanted && !trainer.is_ahead()) break;
    rank_.activity->step_begins();
    const StepReport report =
        trainer.step(!stop_is_wanted && goes_on_behind(training_, trainer.steps_made() + 1, last_step_));
    rank_.activity->step_made(trainer.steps_made(), report.seconds);
    if (report.stop != Stop::none) break;
    if (training_.after_step) training_.after_step(trainer);
    const std::int64_t step = trainer.steps_made();
    if (is_validated(train, step)) {
      rank_.activity->phase("validation");
      training_.validation->seek(validation_start_);
      (void)evaluate(
          training_.model, *training_.validation, train.eval_batches, [this] { rank_.activity->pulse(); },
          rank_.group.get());
    }
    const bool logged = is_logged(train, step, last_step_);
    if (logged || is_saved(train, step)) trainer.compare_weights_with_all();
    if (logged)
      heartbeat.write("progress", {{"loss", json_number(report.loss)}, {"grad_norm", json_number(report.grad_norm)}});
  }
  rank_.activity->phase("end");
  ExitCode code = ExitCode::terminated;
  if (!signals_.starter_died())  // with which the store has gone
    code = static_cast<ExitCode>(together.told_by_first("end", nullptr).at("code").get<int>());
  heartbeat.write("finished", {{"code", static_cast<int>(code)}});
  return code;
}

}  // namespace nsa::train
