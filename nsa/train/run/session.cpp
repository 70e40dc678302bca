#include "nsa/train/run/session.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/clock.hpp"
#include "base/stacks.hpp"
#include "base/streams.hpp"
#include "nsa/call.hpp"
#include "nsa/train/files.hpp"
#include "nsa/train/hash.hpp"
#include "nsa/train/run/records.hpp"
#include "nsa/train/run/watchdog.hpp"

namespace nsa::train {

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kReplaced = "replaced_by_reference";  // function -> how often, in a checkpoint's facts

const char* anomaly_name(Stop stop) {
  if (stop == Stop::diverged) return "diverged";
  return stop == Stop::nonfinite_loss ? "nan_loss" : "nan_gradient";
}

nlohmann::json fallbacks_json(const Dispatcher& dispatcher) {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [op, record] : dispatcher.strict_fallbacks())
    all[op] = {{"times", record.times},
               {"replaced", record.replaced},
               {"shape", record.first.shape},
               {"index", record.first.index},
               {"value", json_number(record.first.value)}};
  return all;
}

// What a variable asks for by name and a step of this training does otherwise, in words.
std::vector<std::string> flags_not_obeyed(const Training& training) {
  const TrainConfig& train = training.config.train;
  const Route taken = route(training.flags, call_of(training.config.model, train.batch_size, train.seq_len,
                                                    train.precision, training.device, /*training=*/true, train.packed));
  std::vector<std::string> all;
  for (const Asked& asked : asked_by_name(training.flags, taken))
    if (!asked.obeyed) all.push_back(describe(asked, taken));
  return all;
}

}  // namespace

Session::Session(const Options& options, const StopSignals& signals, TrainingFolder& folder, const Rank& rank,
                 Training training)
    : signals_(signals),
      folder_(folder),
      rank_(rank),
      training_(std::move(training)),
      last_step_(options.steps.value_or(training_.config.train.steps)),
      progress_({.quiet = options.quiet, .live = base::want_live_line(), .last_step = last_step_}),
      activity_(*rank.activity),
      halt_(folder.path(), folder.run_id()),
      together_(rank.group, signals, halt_.path()),
      store_(folder.file("checkpoints"), training_.config.train.keep_checkpoints),
      gates_(training_.model) {
  training_.trainer->on_phase([this](std::string_view name) { activity_.phase(name); });
  if (training_.validation) validation_start_ = training_.validation->position();
}

ExitCode Session::run(const std::vector<std::string>& arguments) {
  if (const auto refused = refused_by_halt_file()) {
    (void)together_.told_by_first("begin", {{"refused", static_cast<int>(*refused)}});
    return *refused;
  }
  const std::string checkpoint = load_newest_checkpoint();
  (void)together_.told_by_first("begin", {{"run", folder_.run_id()},
                                          {"checkpoint", checkpoint},
                                          {"unknown_flags", descriptions(unknown_flags(training_.environment))}});
  training_.trainer->compare_with_all(facts_of(training_));
  begin(arguments);
  const auto hung = [this](const std::string& why) {
    if (rank_.group) rank_.group->tell_failure(why);
  };
  const Watchdog watchdog({.hang_s = training_.config.train.hang_timeout_s, .folder = folder_.path(), .hung = hung},
                          activity_, *heartbeat_);
  try {
    together_.begin(*training_.trainer, *training_.dispatcher);
    const End end = loop();
    check_output();
    print_last_line(end);
    activity_.phase("end");
    if (!signals_.starter_died())  // with which the store has gone
      (void)together_.told_by_first("end", {{"code", static_cast<int>(end.code)}});
    return end.code;
  } catch (const std::exception& error) {
    if (rank_.group) rank_.group->tell_failure(error.what());
    rescue(error);
    throw;
  }
}

std::optional<ExitCode> Session::refused_by_halt_file() {
  const auto found = halt_.look();
  if (!found || (!folder_.replaces().empty() && found->run == folder_.replaces())) return std::nullopt;
  progress_.warn(fmt::format("{} {}{}{}; remove the file to go on", halt_.path().string(),
                             found->own ? "stopped this run: " : "stops this run",
                             found->own || found->text.empty() ? found->text : ": " + found->text,
                             found->own || found->run.empty() ? "" : ", of run " + found->run));
  return found->own ? ExitCode::anomaly : ExitCode::halted;
}

std::string Session::load_newest_checkpoint() {
  if (!folder_.goes_on()) return "";
  auto newest = store_.newest([this](const std::string& text) { progress_.warn(text); });
  if (!newest) {
    progress_.warn(fmt::format("there is no sound checkpoint of this run in {}: training starts anew",
                               folder_.file("checkpoints").string()));
    return "";
  }
  training_.trainer->load(newest->state);
  if (const auto earlier = newest->state.facts.find(kReplaced);
      earlier != newest->state.facts.end() && earlier->is_object())
    for (const auto& [op, times] : earlier->items())
      if (times.is_number_integer()) replaced_before_[op] = times.get<std::int64_t>();
  saved_step_ = steps();
  progress_.say(fmt::format("goes on from step {} ({})", saved_step_, newest->file.string()));
  return newest->file.filename();
}

void Session::begin(const std::vector<std::string>& arguments) {
  nlohmann::json start = start_record(arguments, training_.device, training_.flags, training_.environment);
  start["ranks"] = {{"count", rank_.world.size}, {"started_by", to_string(rank_.world.origin)}};
  for (const auto& change : folder_.goes_on() ? changes_since(folder_.last_start(), start) : std::vector<std::string>{})
    progress_.warn(change);
  for (const auto& flag : descriptions(unknown_flags(training_.environment))) progress_.warn(flag);
  for (const std::string& refused : flags_not_obeyed(training_)) progress_.warn(refused);
  folder_.begin(flatten(training_.config), start);
  const auto stacks = folder_.file("stacks_crash.txt");
  base::write_stacks_to(
      stacks, fmt::format("nsa-train: CRASHED; stacks in {} (c++filt makes their names readable)\n", stacks.string()));
  *rank_.may_write = true;
  halt_.remove_with(folder_.replaces());
  log_.emplace(folder_.path(), steps(), training_.validation != nullptr,
               [this](const std::string& text) { progress_.warn(text); });
  base::write_whole(folder_.file("dtypes.txt"), dtype_report(*training_.model, training_.config.train));
  activity_.step_made(steps(), 0);
  heartbeat_.emplace(folder_.file("heartbeat.jsonl"), Heartbeat::Source{folder_.run_id(), training_.device, activity_});
  heartbeat_->write(saved_step_ < 0 ? "boot" : "resume", {{"last_step", last_step_}, {"build", start["build"]["id"]}});

  const TrainConfig& train = training_.config.train;
  const std::string work = steps() < last_step_ ? fmt::format("steps {} to {}", steps() + 1, last_step_)
                                                : fmt::format("all {} steps are made", last_step_);
  progress_.say(
      fmt::format("run {}: {}, {} parameters, {}, {}; {} x {} x {} tokens a step{}; {}; {}", folder_.run_id(),
                  training_.config.model.name, parameter_count(training_.config.model), to_string(train.precision),
                  training_.device.str(), train.accumulate_grad_batches, train.batch_size, train.seq_len,
                  rank_.group ? fmt::format(", shared by {} ranks ({})", rank_.world.size, rank_.group->backend()) : "",
                  work, folder_.path().string()));
  if (train.cuda_graph == CudaGraph::on && !training_.device.is_cuda())
    progress_.warn(
        fmt::format("train.cuda_graph: there are no graphs on {}; the same step is made one operation after "
                    "another",
                    training_.device.str()));
}

Session::End Session::loop() {
  const TrainConfig& train = training_.config.train;
  while (steps() < last_step_) {
    if (!training_.trainer->is_ahead())
      if (const auto end = wish_to_stop()) return *end;
    const std::int64_t next = steps() + 1;
    const bool logged = is_logged(train, next, last_step_);
    const bool goes_on = goes_on_behind(training_, next, last_step_) && !wants_to_stop();
    activity_.step_begins();
    const StepReport report = training_.trainer->step(goes_on);
    activity_.step_made(steps(), report.seconds);
    if (report.stop != Stop::none) return stopped(report);
    if (training_.after_step) training_.after_step(*training_.trainer);
    after_step(report, logged);
  }
  if (const auto why = training_.trainer->diverged()) {  // in its last steps
    StepReport report;
    report.step = steps();
    report.stop = Stop::diverged;
    report.anomaly = *why;
    return stopped(report);
  }
  if (saved_step_ != steps()) save();
  const auto replaced = replaced_so_far();
  heartbeat_->write("finished", replaced.empty() ? nlohmann::json::object() : nlohmann::json{{kReplaced, replaced}});
  if (replaced.empty()) return {ExitCode::finished, ""};
  for (const auto& [op, times] : replaced)
    progress_.warn(
        fmt::format("{} of this run's values of {} were not finite, and the reference's were taken instead "
                    "(NSA_STRICT_ASSERTS): the function is not fit to train; exit code {}",
                    times, op, static_cast<int>(ExitCode::replaced)));
  return {ExitCode::replaced, ""};
}

bool Session::wants_to_stop() const {
  return rank_.group ? together_.wishes(*training_.trainer).stop() : signals_.arrived() || halt_.look();
}

std::optional<Session::End> Session::wish_to_stop() {
  std::optional<End> end;
  if (rank_.group) {
    end = wanted_by_any();
  } else if (const auto signal = signals_.arrived()) {
    end = End{*signal == SIGINT ? ExitCode::interrupted : ExitCode::terminated, signals_.reason()};
    heartbeat_->write("signal", {{"signal", end->reason}});
  } else if (const auto found = halt_.look()) {
    end = End{ExitCode::halted, "halt_file"};
    progress_.warn(fmt::format("{} stops this run{}; remove it and use --resume to go on", halt_.path().string(),
                               found->text.empty() ? "" : ": " + found->text));
    heartbeat_->write("halted", {{"text", found->text}});
  }
  if (end && saved_step_ != steps()) save();
  return end;
}

std::optional<Session::End> Session::wanted_by_any() {
  const AgreedWishes wishes = together_.wishes(*training_.trainer);
  if (!wishes.stop()) return std::nullopt;
  if (wishes.interrupted > 0 || wishes.terminated > 0) {
    const bool interrupted = wishes.interrupted > 0;
    // Of another rank's signal the agreement knows no more than whether it was SIGINT.
    const std::string own = signals_.reason(), reason = !own.empty() ? own : interrupted ? "SIGINT" : "rank_signalled";
    if (signals_.starter_died())
      progress_.warn("the process that started the ranks (--nproc) has died: this run stops; --resume goes on with it");
    heartbeat_->write("signal", {{"signal", reason}, {"ranks", wishes.interrupted + wishes.terminated}});
    return End{interrupted ? ExitCode::interrupted : ExitCode::terminated, reason};
  }
  progress_.warn(fmt::format("{} stops this run; remove it and use --resume to go on", halt_.path().string()));
  heartbeat_->write("halted", {{"ranks", wishes.halted}});
  return End{ExitCode::halted, "halt_file"};
}

// Before the update: the state is that of the step before, which is saved; the run can go on from there.
Session::End Session::stopped(const StepReport& report) {
  check_output();                                        // a .HALT in another run's folder would stop that one
  if (report.stop == Stop::diverged) store_.keep_all();  // those from before it are worth more now
  if (saved_step_ != steps()) save();
  const std::int64_t step = report.step + 1;
  if (report.stop == Stop::end_of_data) {
    progress_.warn(fmt::format("step {}: the data has ended: {}", step, report.anomaly));
    heartbeat_->write("end_of_data", {{"reason", report.anomaly}});
    return {ExitCode::end_of_data, "end_of_data"};
  }
  nlohmann::json evidence = {{"step", step},
                             {"anomaly", anomaly_name(report.stop)},
                             {"reason", report.anomaly},
                             {"parameter", report.parameter},
                             {"rank", report.rank < 0 ? nlohmann::json() : nlohmann::json(report.rank)},
                             {"loss", json_number(report.loss)},
                             {"grad_norm", json_number(report.grad_norm)},
                             {"lr", report.lr},
                             {"checkpoint_step", steps()},
                             {"routes", rows_taken<nlohmann::json>(*training_.dispatcher)},
                             {"strict_fallbacks", fallbacks_json(*training_.dispatcher)}};
  if (report.stop == Stop::diverged) {
    evidence["loss"] = json_number(training_.trainer->last_loss());  // of the step before, as the rate
    evidence["lr"] = learning_rate(training_.config.train, steps() - 1);
    evidence.erase("grad_norm");
    evidence["divergence"] = training_.trainer->divergence().evidence();
    evidence["what_to_do"] =
        "begin anew with a lower train.lr or a longer train.warmup_steps, or from a checkpoint before since_step (move "
        "the later ones away); to go on as it is, remove this file and use --resume, and for good "
        "train.stop_on_divergence=false";
    progress_.warn(
        fmt::format("the run has diverged after step {}: {}; see {}", steps(), report.anomaly, halt_.path().string()));
  } else {
    const std::string reason = report.anomaly == report.parameter ? "" : report.anomaly + ", ";
    progress_.warn(fmt::format("step {} is not made: {} ({}first bad parameter: {}); see {}", step,
                               anomaly_name(report.stop), reason, report.parameter.empty() ? "none" : report.parameter,
                               halt_.path().string()));
  }
  halt_.write(evidence);
  heartbeat_->write("anomaly", evidence);
  return {ExitCode::anomaly, anomaly_name(report.stop)};
}

void Session::after_step(const StepReport& report, bool logged) {
  log_->step(report);
  const TrainConfig& train = training_.config.train;
  Progress::Figures figures{steps(), report.loss, report.lr, 0, activity_.look().median_s};
  if (is_validated(train, steps())) {
    try {
      validate();
    } catch (...) {  // the step was made, and has its row
      (void)write_row();
      throw;
    }
  }
  if (logged || is_saved(train, steps())) training_.trainer->compare_weights_with_all();
  if (logged) {
    const Window window = write_row();
    figures.tok_per_s = window.tok_per_s;
    nlohmann::json fields = {{"loss", report.loss},
                             {"lr", report.lr},
                             {"grad_norm", report.grad_norm},
                             {"tok_per_s", window.tok_per_s},
                             {"step_s", window.step_s},
                             {"fetch_p50_ms", window.fetch_p50_ms},
                             {"fetch_p95_ms", window.fetch_p95_ms},
                             {"tokens", training_.trainer->tokens_seen()},
                             {"seconds", training_.trainer->seconds_spent()},
                             {"strict_fallbacks", fallbacks_json(*training_.dispatcher)}};
    if (training_.trainer->by_graph()) fields["graph_replays"] = training_.trainer->graph_replays();
    fields.update(gates_.figures(report.replayed));
    heartbeat_->write("progress", fields);
  }
  progress_.step(figures, logged);
  note_lost_output();
  note_fallbacks();
  note_not_captured();
  if (is_saved(train, steps())) save();
}

Window Session::write_row() {
  folder_.check();
  return log_->row({.tokens = training_.trainer->tokens_seen(), .seconds = training_.trainer->seconds_spent()});
}

void Session::validate() {
  activity_.phase("validation");
  const auto start = Clock::now();
  training_.validation->seek(validation_start_);  // the same batches every time
  Evaluation result;
  try {
    result = evaluate(
        training_.model, *training_.validation, training_.config.train.eval_batches, [this] { activity_.pulse(); },
        rank_.group.get());
  } catch (const ContractError&) {
    throw;
  } catch (const parallel::Error&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw DataError(fmt::format("validation: {}", error.what()));
  }
  log_->validation(steps(), result, base::seconds_since(start));
  heartbeat_->write("validation", {{"loss", json_number(result.loss)}, {"tokens", result.tokens}});
  progress_.say(fmt::format("step {}: validation loss {:.4f} over {} tokens", steps(), result.loss, result.tokens));
}

void Session::check_output() {
  folder_.check();
  log_->check();
  heartbeat_->check();
}

void Session::save() {
  activity_.phase("checkpoint");
  folder_.check();
  log_->sync();  // no row of a saved step is ever missing
  save_state();
}

void Session::save_state() {
  const auto start = Clock::now();
  TrainState state = training_.trainer->state();
  state.facts["seconds"] = training_.trainer->seconds_spent();  // not the trainer's: no two runs take as long
  if (const auto replaced = replaced_so_far(); !replaced.empty()) state.facts[kReplaced] = replaced;
  const auto file = store_.save(state, [this] { activity_.pulse(); });
  saved_step_ = steps();
  heartbeat_->write("checkpoint", {{"file", file.filename().string()},
                                   {"bytes", std::filesystem::file_size(file)},
                                   {"seconds", base::seconds_since(start)}});
}

// After an exception, which stays the one that is told: keeps the steps that were made since the last checkpoint.
// Where a table is found missing before its folder is, the folder's loss is told.
void Session::rescue(const std::exception& error) {
  const bool lost = dynamic_cast<const FileLost*>(&error) != nullptr;
  try {
    folder_.check();
  } catch (const FileLost&) {
    progress_.warn(fmt::format("nothing more is written to {}; {}", folder_.path().string(),
                               saved_step_ < 0
                                   ? "this run had made no checkpoint"
                                   : fmt::format("this run's newest checkpoint was of step {}", saved_step_)));
    if (lost) throw;
    return;
  }
  try {
    if (training_.trainer->is_ahead()) (void)training_.trainer->step();  // which is in the weights, or may be
  } catch (const std::exception&) {                                      // the first error says more
  }
  const bool disk = dynamic_cast<const FileError*>(&error) != nullptr && !lost;
  try {
    // Without a table the steps themselves can be saved.
    if (!disk && saved_step_ != steps()) lost ? save_state() : save();
    heartbeat_->write("error", {{"what", error.what()}});
  } catch (const std::exception& second) {
    if (std::string_view(second.what()) != error.what())
      progress_.warn(fmt::format("could not be {}: {}", saved_step_ == steps() ? "recorded" : "saved", second.what()));
  }
  progress_.warn(saved_step_ < 0
                     ? "there is no checkpoint; --resume starts anew"
                     : fmt::format("the newest checkpoint is of step {}; --resume goes on from there", saved_step_));
}

void Session::print_last_line(const End& end) const {
  const TrainState state = training_.trainer->state();
  const nlohmann::json& loss = state.facts.at("loss");
  const std::string figures =
      fmt::format("step={} loss={} weights={}", steps(),
                  loss.is_number() ? fmt::format("{}", loss.get<double>()) : "none", weights_hash(*training_.model));
  if (const auto why = base::lost(stderr))
    base::out("nsa-train: error: standard error cannot be written: {}; what it should have shown is lost\n", *why);
  if (end.code == ExitCode::finished || end.code == ExitCode::replaced)
    base::out("final: {}\n", figures);
  else
    base::out("stopped: {} reason={}\n", figures, end.reason);
}

std::map<std::string, std::int64_t> Session::replaced_so_far() const {
  auto all = replaced_before_;
  for (const auto& [op, record] : training_.dispatcher->strict_fallbacks())
    if (record.replaced > 0) all[op] += record.replaced;
  std::int64_t own = 0;
  for (const auto& [op, record] : training_.dispatcher->strict_fallbacks()) own += record.replaced;
  if (rank_.group)
    if (const auto others = static_cast<std::int64_t>(together_.wishes(*training_.trainer).replaced) - own; others > 0)
      all["(on other ranks)"] += others;
  return all;
}

void Session::note_fallbacks() {
  for (const auto& [op, record] : training_.dispatcher->strict_fallbacks()) {
    if (record.replaced == 0 || !fallen_back_.insert(op).second) continue;
    progress_.warn(fmt::format(
        "step {}: {} gave {} at [{}] of its output [{}]; the reference's was taken instead "
        "(NSA_STRICT_ASSERTS), but the function is not fit to train",
        steps(), op, record.first.value, fmt::join(record.first.index, ", "), fmt::join(record.first.shape, ", ")));
    heartbeat_->write("strict_fallback", {{"op", op}, {"strict_fallbacks", fallbacks_json(*training_.dispatcher)}});
  }
}

void Session::note_not_captured() {
  const std::string& why = training_.trainer->why_not_captured();
  if (why.empty() || told_not_captured_) return;
  told_not_captured_ = true;
  progress_.warn(fmt::format("steps are made one operation after another, not as a CUDA graph: {}", why));
  heartbeat_->write("not_captured", {{"reason", why}});
}

void Session::note_lost_output() {
  const auto why = base::lost(stderr);
  if (why && !lost_output_) heartbeat_->write("lost_output", {{"stream", "stderr"}, {"reason", *why}});
  lost_output_ = why.has_value();
}

}  // namespace nsa::train
