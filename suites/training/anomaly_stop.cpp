// Case anomaly_stop: the training program itself, stopped by a NaN at step k. It must leave the state of the last good
// step, a HALT record that says what happened, and a run that goes on from there as if nothing had been.
#include "suites/training/anomaly_stop.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "nsa/train/checkpoint.hpp"
#include "nsa/train/run/exit_code.hpp"
#include "suites/codes.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/program_run.hpp"

namespace suites::training_cases {

namespace {

namespace fs = std::filesystem;
using harness::Context;
using harness::Json;
using nsa::train::ExitCode;

constexpr const char* kVictim = "norm.weight";

// The gradient of one parameter is NaN in backward pass number `pass`.
nsa::train::Seams poison(std::int64_t pass) {
  return {.model = [pass](nsa::LanguageModel& model) {
    auto passes = std::make_shared<std::int64_t>(0);
    model->named_parameters()[kVictim].register_hook([passes, pass](const at::Tensor& gradient) {
      return ++*passes == pass ? gradient * std::numeric_limits<double>::quiet_NaN() : gradient;
    });
  }};
}

Json read_json(const fs::path& file) {
  std::ifstream stream(file);
  return stream ? Json::parse(stream, nullptr, /*allow_exceptions=*/false) : Json(Json::value_t::discarded);
}

std::optional<nsa::train::TrainState> newest(const fs::path& run) {
  auto loaded = nsa::train::CheckpointStore(run / "checkpoints", 1000).newest([](const std::string&) {});
  if (!loaded) return std::nullopt;
  return std::move(loaded->state);
}

// Whether one of the heartbeat's lines tells this event.
bool heartbeat_tells(const fs::path& run, std::string_view event) {
  std::ifstream stream(run / "heartbeat.jsonl");
  for (std::string line; std::getline(stream, line);) {
    const Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_object() && record.value("event", "") == event) return true;
  }
  return false;
}

class Judge {
 public:
  Judge(const StopTrial& trial, Context& context) : trial_(trial), context_(context) {}

  void run() {
    expect_exit("the run without a disturbance", start(undisturbed()), ExitCode::finished, codes::kNotResumable);
    expect_exit("the run with a NaN in a gradient", start(stopped(), false, poison(trial_.poisoned_step)),
                ExitCode::anomaly, codes::kGuardMissed);
    if (trial_.after_stop) trial_.after_stop(stopped());
    check_record();
    check_state();
    expect_exit("resume while the HALT record is there", start(stopped(), true), ExitCode::anomaly, codes::kHaltRecord);
    std::error_code ignored;
    fs::remove(stopped() / ".HALT", ignored);
    expect_exit("resume without it", start(stopped(), true), ExitCode::finished, codes::kNotResumable);
    check_end();
  }

 private:
  [[nodiscard]] fs::path undisturbed() const { return trial_.folder / "undisturbed"; }
  [[nodiscard]] fs::path stopped() const { return trial_.folder / "stopped"; }

  int start(const fs::path& out, bool resume = false, const nsa::train::Seams& seams = {}) {
    context_.phase(fmt::format("{}{}", out.filename().string(), resume ? ", resumed" : ""));
    std::vector<std::string> arguments = trial_.arguments;
    arguments.insert(arguments.end(), {"--out", out.string(), "--steps", std::to_string(trial_.steps), "--quiet"});
    if (resume) arguments.emplace_back("--resume");
    return run_nsa_train(std::move(arguments), seams).exit_code;
  }

  void expect_exit(const std::string& what, int code, ExitCode wanted, std::string_view finding) {
    context_.expect("exit code of " + what, code == static_cast<int>(wanted),
                    fmt::format("{} ended with exit code {} instead of {}", what, code, static_cast<int>(wanted)),
                    finding, {{"exit_code", code}});
  }

  void check_record() {
    const Json record = read_json(stopped() / ".HALT"), run = read_json(stopped() / "run.json");
    const Json wanted = {{"run", run.is_object() ? run.value("run_id", "?") : "?"},
                         {"anomaly", "nan_gradient"},
                         {"step", trial_.poisoned_step},
                         {"parameter", kVictim}};
    Json got = Json::object();
    for (const auto& [key, value] : wanted.items()) {
      got[key] = record.is_object() && record.contains(key) ? record[key] : Json();
    }
    context_.expect_equal("HALT record", got, wanted, codes::kHaltRecord,
                          {{"record", record.is_discarded() ? Json("there is none, or no JSON") : record}});
    context_.expect("heartbeat tells the anomaly", heartbeat_tells(stopped(), "anomaly"),
                    "heartbeat.jsonl has no record of the event 'anomaly'", codes::kHaltRecord);
  }

  void check_state() {
    const auto state = newest(stopped());
    std::string bad;
    for (const auto& [name, tensor] : state ? state->tensors : std::map<std::string, at::Tensor>{}) {
      if (tensor.is_floating_point() && !tensor.isfinite().all().item<bool>()) bad = name;
    }
    const std::int64_t step = state ? state->step() : -1;
    context_.expect("checkpoint of the last good step", step == trial_.poisoned_step - 1 && bad.empty(),
                    fmt::format("the newest checkpoint after a NaN at step {} is of step {}{}", trial_.poisoned_step,
                                step, bad.empty() ? "" : ", and " + bad + " is not finite"),
                    codes::kNotResumable, {{"checkpoint_step", step}, {"nonfinite", bad}});
  }

  // The resumed run ends where the undisturbed one did.
  void check_end() {
    const auto wanted = newest(undisturbed()), got = newest(stopped());
    if (!wanted || !got || wanted->step() != trial_.steps || got->step() != trial_.steps) {
      context_.finding(codes::kNotResumable,
                       fmt::format("the runs end with checkpoints of step {} and {} instead of {}",
                                   wanted ? wanted->step() : -1, got ? got->step() : -1, trial_.steps));
      return;
    }
    double worst = 0;
    for (const auto& [name, tensor] : wanted->tensors) {
      if (!name.starts_with("model/")) continue;
      const at::Tensor a = tensor.to(at::kDouble), b = got->tensors.at(name).to(at::kDouble);
      worst = std::max(worst, ((a - b).norm() / a.norm().clamp_min(1e-12)).item<double>());
    }
    const double loss = std::abs(wanted->facts.at("loss").get<double>() - got->facts.at("loss").get<double>());
    // Where sums vary from run to run, the first steps of Adam turn that into some part of an update.
    context_.expect_at_most("weights after stop and resume differ by", worst, trial_.bits ? 0 : 0.05, "of their norm",
                            codes::kResumeWeights);
    context_.expect_at_most("last loss after stop and resume differs by", loss, trial_.bits ? 0 : 0.05, "nat",
                            codes::kResumeWeights);
  }

  const StopTrial& trial_;
  Context& context_;
};

}  // namespace

void judge_stop(const StopTrial& trial, Context& context) {
  Judge(trial, context).run();
  fs::remove_all(trial.folder);
}

void anomaly_stop(const Subject& subject, Context& context) {
  const RunPlan plan = make_plan(subject, context, Data::text);
  const nsa::TrainConfig& train = plan.config.train;
  const bool crops = fs::path(train.data).extension() != ".jsonl";
  StopTrial trial;
  trial.folder = context.run_folder() / fmt::format("anomaly-stop-{}", getpid());
  trial.bits = !plan.device.is_cuda();
  trial.arguments = {"--config", model_file(context.settings()).string(), "--data", train.data,
                     "--device", plan.device.is_cuda() ? "cuda" : "cpu"};
  // Small enough to be run twice; without a watchdog, because the harness has one.
  const std::pair<const char*, std::string> settings[] = {
      {"model.n_layers", std::to_string(std::min<std::int64_t>(plan.config.model.n_layers, 2))},
      {"train.seq_len", std::to_string(std::min<std::int64_t>(train.seq_len, plan.device.is_cuda() ? 512 : 96))},
      {"train.batch_size", "2"},
      {"train.accumulate_grad_batches", "1"},
      {"train.order", crops ? "random_crops" : "sequential"},
      {"train.packed", "false"},
      {"train.save_every", "3"},
      {"train.cuda_graph", "false"},  // a replay calls no hook, and so no fault (captured_step.cpp stops those)
      {"train.hang_timeout_s", "0"}};
  for (const nsa::Override& set : model_overrides(context.settings()))
    trial.arguments.insert(trial.arguments.end(), {"--set", set.key + "=" + set.value});
  for (const auto& [key, value] : settings) {
    trial.arguments.insert(trial.arguments.end(), {"--set", fmt::format("{}={}", key, value)});
  }
  judge_stop(trial, context);
}

}  // namespace suites::training_cases
