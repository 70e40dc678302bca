// Case written_down: nsa-train in two starts on data that the case makes, with a witness at its seams.
#include "suites/training/written_down.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "base/clock.hpp"
#include "suites/codes.hpp"
#include "suites/probes/one_thread.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/claims.hpp"
#include "suites/training/made_text.hpp"

namespace suites::training_cases {

namespace {

namespace fs = std::filesystem;
using harness::Context;

nsa::Config configuration(const WrittenTrial& trial) {
  std::vector<nsa::Override> overrides;
  for (const auto& [key, value] : trial.settings) overrides.push_back({key, value, "written_down"});
  return nsa::load_config(trial.model, overrides);
}

}  // namespace

std::vector<std::string> arguments_of(const WrittenTrial& trial, bool second) {
  std::vector<std::string> arguments = {"--config", trial.model.string(),
                                        "--out",    trial.folder.string(),
                                        "--device", trial.device.is_cuda() ? "cuda" : "cpu",
                                        "--quiet"};
  for (const auto& [key, value] : trial.settings)
    arguments.insert(arguments.end(), {"--set", fmt::format("{}={}", key, value)});
  if (second)
    arguments.emplace_back("--resume");
  else
    arguments.insert(arguments.end(), {"--steps", std::to_string(trial.cut)});
  return arguments;
}

std::string_view to_string(WrittenData data) {
  if (data == WrittenData::packed) return "packed";
  if (data == WrittenData::paragraphs) return "paragraphs";
  if (data == WrittenData::shuffled) return "shuffled";
  return data == WrittenData::text ? "text" : "crops";
}

WrittenTrial written_trial(WrittenData data, const fs::path& model, at::Device device, const fs::path& folder,
                           const std::vector<nsa::Override>& set) {
  const bool lines = data == WrittenData::packed, packed = lines || data == WrittenData::paragraphs,
             crops = data == WrittenData::crops, shuffled = data == WrittenData::shuffled;
  const fs::path file = folder / (lines ? "documents.jsonl" : packed ? "paragraphs.txt" : "prose.txt");
  // The training part of the prose is eight rows and three quarters: passes end within a step, and one before the cut.
  // Crops need room: in this much text the seed draws no place twice.
  write_text(file, lines ? made_documents() : packed ? made_paragraphs() : made_prose(crops ? 60'000 : 560));
  // What is written does not hang on the stream's width.
  const nsa::ModelConfig subject = nsa::load_config(model, set).model;
  const std::int64_t layers = std::min<std::int64_t>(subject.n_layers, 3),
                     dim = std::min<std::int64_t>(subject.dim, 128);
  WrittenTrial trial{.model = model, .settings = {}, .device = device, .folder = folder / "run"};
  for (const nsa::Override& item : set) trial.settings.emplace_back(item.key, item.value);
  // The seed is not the default, which one that is lost would be.
  const std::vector<std::pair<std::string, std::string>> own = {{"model.n_layers", std::to_string(layers)},
                                                                {"model.dim", std::to_string(dim)},
                                                                {"nsa.gate", packed ? "sigmoid" : "softmax"},
                                                                {"train.data", file.string()},
                                                                {"train.precision", packed ? "fp32" : "bf16"},
                                                                {"train.steps", std::to_string(kWrittenSteps)},
                                                                {"train.warmup_steps", "3"},
                                                                {"train.lr", "1e-3"},
                                                                {"train.seed", "20261"},
                                                                {"train.seq_len", "48"},
                                                                {"train.batch_size", packed ? "1" : "2"},
                                                                {"train.accumulate_grad_batches", crops ? "1" : "2"},
                                                                {"train.gradient_checkpointing", "false"},
                                                                {"train.order", crops      ? "random_crops"
                                                                                : shuffled ? "shuffled"
                                                                                           : "sequential"},
                                                                {"train.packed", packed ? "true" : "false"},
                                                                {"train.epochs", crops ? "1" : "0"},
                                                                {"train.validation_share", "0.25"},
                                                                {"train.log_every", packed ? "4" : "1"},
                                                                {"train.eval_every", "2"},
                                                                {"train.eval_batches", "2"},
                                                                {"train.save_every", "5"},
                                                                {"train.keep_checkpoints", "100"},
                                                                {"train.prefetch_batches", "3"},
                                                                {"train.master_weights", "true"},
                                                                {"train.cuda_graph", "auto"},
                                                                {"train.hang_timeout_s", "0"}};  // the harness watches
  trial.settings.insert(trial.settings.end(), own.begin(), own.end());
  return trial;
}

bool WrittenRun::finished() const {
  bool ended = starts.size() == 2 && static_cast<std::int64_t>(steps.size()) == config.train.steps;
  for (const Start& start : starts) ended = ended && start.end.exit_code == 0;
  return ended && steps[static_cast<std::size_t>(cut - 1)].start == 0 &&
         steps[static_cast<std::size_t>(cut)].start == 1;
}

WrittenRun make_written_run(const WrittenTrial& trial, Context& context) {
  WrittenRun run{.config = configuration(trial), .device = trial.device, .folder = trial.folder, .cut = trial.cut};
  RunWitness witness(trial.stream);
  for (const bool second : {false, true}) {
    context.phase(second ? "resumed run" : "run up to the cut");
    const auto begin = std::chrono::steady_clock::now();
    WrittenRun::Start start{.arguments = arguments_of(trial, second), .end = {}, .seconds = 0};
    start.end = run_nsa_train(start.arguments, witness.next_start());
    start.seconds = base::seconds_since(begin);
    run.starts.push_back(std::move(start));
    run.unfinished = witness.unfinished().batches;
    if (run.starts.back().end.exit_code != 0) break;
  }
  run.steps = witness.steps();
  return run;
}

void judge_ends(const WrittenRun& run, Context& context) {
  Claims claims("the two starts", codes::kToldOtherwise);
  for (std::size_t i = 0; i < run.starts.size(); ++i) {
    claims.equal(fmt::format("start {}", i + 1), "exit code", run.starts[i].end.exit_code, 0);
    if (!claims.hold()) claims.note_first("said", run.starts[i].end.error);
  }
  std::vector<std::int64_t> made(run.starts.size());
  for (const SeenStep& step : run.steps) ++made[static_cast<std::size_t>(step.start)];
  claims.equal("all starts", "steps made", std::vector<std::int64_t>{run.cut, run.config.train.steps - run.cut}, made);
  claims.conclude(context);
}

void written_down(const Subject& subject, Context& context, WrittenData data) {
  const RunPlan plan = make_plan(subject, context, Data::text);
  const fs::path folder = context.run_folder() / fmt::format("written-down-{}-{}", to_string(data), getpid());
  // Which rows and borders are read does not hang on the device; what is written is seen on it by the other two.
  const bool of_data = data != WrittenData::text && data != WrittenData::packed;
  const WrittenTrial trial =
      written_trial(data, model_file(context.settings()), of_data ? at::Device(at::kCPU) : plan.device, folder,
                    model_overrides(context.settings()));
  const probes::ThreadsFor threads(plan.config.model.dim, plan.device.is_cuda());
  const WrittenRun run = make_written_run(trial, context);
  judge_ends(run, context);
  judge_batches(run, context);
  judge_files(run, context);
  if (data == WrittenData::text && run.finished()) {
    judge_stop(trial, context);
    judge_divergence(trial, context);
    judge_refusals(trial, context);
  }
  fs::remove_all(folder);
}

}  // namespace suites::training_cases
