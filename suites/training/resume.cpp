// Case resume: a run that is cut off and goes on from its checkpoint FILE is bit for bit the run that was not.
#include "suites/training/resume.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "nsa/train/checkpoint.hpp"
#include "nsa/train/prefetch.hpp"
#include "suites/codes.hpp"
#include "suites/probes/fixed_order.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/repetition.hpp"
#include "suites/training/stops.hpp"

namespace suites::training_cases {

namespace {

using harness::Context;
using harness::Json;
using nsa::train::StepReport;
using nsa::train::TrainState;

// A trainer with all that it needs, and its data under observation.
struct Party {
  Instance instance;
  std::shared_ptr<RecordedStream> stream;
  std::unique_ptr<nsa::train::Trainer> trainer;
  std::vector<StepReport> steps;

  void make_steps(std::int64_t count, Context& context) {
    for (std::int64_t i = 0; i < count; ++i) {
      steps.push_back(trainer->step());
      context.progress();
      if (!went_on(steps.back())) return;
    }
  }
  [[nodiscard]] bool went_well() const { return std::all_of(steps.begin(), steps.end(), went_on); }
};

Party make_party(const Subject& subject, const ResumeTrial& trial) {
  Party party;
  party.instance = make_model(subject, trial.plan);  // seeds torch's generator, too
  party.stream = std::make_shared<RecordedStream>(trial.open(trial.plan), room_for(trial.plan), /*draws=*/true);
  party.trainer = std::make_unique<nsa::train::Trainer>(party.instance.model, trial.plan.config.train, party.stream);
  return party;
}

// A party whose weights, moments and random numbers are other ones until the state is loaded.
Party make_stranger(const Subject& subject, ResumeTrial trial) {
  Party party = make_party(subject, trial);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : party.instance.model->parameters()) parameter.fill_(0.5);
  torch::manual_seed(trial.plan.config.train.seed + 1);
  return party;
}

std::size_t count_of(const TrainState& state, std::string_view part) {
  return static_cast<std::size_t>(std::count_if(state.tensors.begin(), state.tensors.end(),
                                                [&](const auto& item) { return item.first.starts_with(part); }));
}

// One comparison of two states, part by part. `when` stands in the names: "after loading", "at the end".
void compare_states(const TrainState& wanted, const TrainState& got, const std::string& when, Context& context) {
  const auto part = [&](std::string_view prefix, std::string_view what, std::string_view code) {
    const std::vector<std::string> differ = differences(wanted, got, prefix);
    const std::size_t all = count_of(wanted, prefix);
    context.expect(fmt::format("{} {}", what, when), differ.empty() && all > 0,
                   fmt::format("{}: {} of {} tensors of the {} differ, the first is {}", when, differ.size(), all, what,
                               differ.empty() ? "none (there are none at all)" : differ.front()),
                   code, {{"differ", differ}});
  };
  part("model/", "weights", codes::kResumeWeights);
  part("optimizer/", "optimizer", codes::kResumeOptimizer);
  part("rng/", "random generators", codes::kResumeRandom);
  context.expect_equal("data position " + when, got.facts.at("data"), wanted.facts.at("data"), codes::kResumeData);
  context.expect_equal("step " + when, got.facts.at("step"), wanted.facts.at("step"), codes::kResumeWeights);
}

// Saves to a file, reads it back; nothing when that fails, which is then told.
std::optional<TrainState> through_file(const TrainState& state, const ResumeTrial& trial, Context& context) {
  std::string complaints;
  try {
    nsa::train::CheckpointStore store(trial.folder, 1);
    const std::filesystem::path file = store.save(state);
    context.metric("checkpoint", static_cast<double>(std::filesystem::file_size(file)), "byte");
    auto loaded = store.newest([&](const std::string& said) { complaints += said + "; "; });
    std::filesystem::remove_all(trial.folder);
    if (loaded) return std::move(loaded->state);
    complaints += "no whole checkpoint was found";
  } catch (const std::runtime_error& error) {
    complaints += error.what();
  }
  context.finding(codes::kNotResumable, "a state was saved and cannot be read back: " + complaints);
  return std::nullopt;
}

// Data and schedule do not depend on the model's arithmetic: they are the same whatever the device.
void compare_data(const Party& whole, const Party& resumed, std::int64_t cut, Context& context) {
  const std::int64_t accumulated = whole.stream->tokens().size(0) / static_cast<std::int64_t>(whole.steps.size());
  const at::Tensor wanted = whole.stream->tokens().slice(0, cut * accumulated), got = resumed.stream->tokens();
  std::int64_t first_other = -1;
  for (std::int64_t i = 0; first_other < 0 && i < std::max(wanted.size(0), got.size(0)); ++i) {
    if (i >= wanted.size(0) || i >= got.size(0) || !at::equal(wanted[i], got[i])) first_other = i;
  }
  context.expect("batches after the cut", first_other < 0,
                 fmt::format("batch {} after the cut is another one ({} were read, {} expected)", first_other,
                             got.size(0), wanted.size(0)),
                 codes::kResumeData, {{"first_other_batch", first_other}});
  const auto& drawn = whole.stream->drawn();
  const std::vector<double> expected(drawn.begin() + cut * accumulated, drawn.end());
  context.expect_equal("random numbers after the cut", resumed.stream->drawn(), expected, codes::kResumeRandom);
}

}  // namespace

void judge_resume(const Subject& subject, const ResumeTrial& trial, Context& context) {
  const std::int64_t steps = trial.plan.config.train.steps, cut = trial.cut_after;
  context.phase("uninterrupted run");
  Party whole = make_party(subject, trial);
  whole.make_steps(steps, context);
  context.phase("run up to the cut");
  Party first = make_party(subject, trial);
  first.make_steps(cut, context);
  if (!whole.went_well() || !first.went_well()) {
    return report_stop((whole.went_well() ? first : whole).steps.back(), context, "before anything was resumed: ");
  }
  const TrainState saved = first.trainer->state();
  check_types(saved, trial.plan.config.train, context);
  first = Party();  // and is gone

  context.phase("checkpoint");
  std::optional<TrainState> read = through_file(saved, trial, context);
  if (!read) return;
  if (trial.on_the_way) trial.on_the_way(*read);
  context.phase("resumed run");
  Party resumed = make_stranger(subject, trial);
  try {
    resumed.trainer->load(*read);
  } catch (const std::invalid_argument& error) {
    context.finding(codes::kNotResumable, std::string("the state of this very run is refused: ") + error.what());
    return;
  }
  compare_states(saved, resumed.trainer->state(), "after loading", context);
  resumed.make_steps(steps - cut, context);
  resumed.steps.insert(resumed.steps.begin(), whole.steps.begin(), whole.steps.begin() + cut);
  compare_data(whole, resumed, cut, context);

  double allowed = 0;
  if (!differences(whole.trainer->state(), resumed.trainer->state(), "").empty()) {
    context.phase("does the run repeat itself?");
    Party again = make_party(subject, trial);
    again.make_steps(steps, context);
    allowed = spread(whole.steps, again.steps, 0);
    const bool repeats = differences(whole.trainer->state(), again.trainer->state(), "").empty();
    if (!repeats) {
      context.finding(
          codes::kTrainingRepeats, context.cuda() ? reports::Severity::warn : reports::Severity::block,
          fmt::format("two runs of {} steps with the same seed and data differ by {:.2g} of the loss or the "
                      "gradient norm",
                      steps, allowed),
          {{"spread", reports::number(allowed)}});
    }
    // Bits can be asked for only where a run gives the same ones twice; elsewhere ten times its own spread is plenty.
    allowed = repeats ? 0 : 10 * allowed + 1e-6;
    if (repeats) compare_states(whole.trainer->state(), resumed.trainer->state(), "at the end", context);
  } else {
    context.expect("final state is that of the uninterrupted run, bit for bit", true, "", codes::kResumeWeights);
  }
  context.expect_at_most("losses, rates and norms after the cut", spread(whole.steps, resumed.steps, cut), allowed,
                         "of each", codes::kResumeWeights);
}

void check_types(const TrainState& state, const nsa::TrainConfig& config, Context& context) {
  const at::ScalarType stored = nsa::storage_type(config.precision);
  const bool narrow = stored == at::kBFloat16, copies = narrow && config.master_weights;
  const at::ScalarType moments = copies ? at::kFloat : stored;
  Json counts = Json::object(), wrong = Json::array();
  std::size_t parameters = 0, masters = 0;
  for (const auto& [name, tensor] : state.tensors) {
    const auto is = [&, &key = name](std::string_view part) { return key.starts_with(part); };
    const bool master = is("optimizer/master/"), moment = is("optimizer/exp_avg/") || is("optimizer/exp_avg_sq/");
    if (!is("model/") && !master && !moment) continue;
    const std::string part = name.substr(0, name.find('/', is("model/") ? 0 : std::string("optimizer/").size()));
    Json& count = counts[part][std::string(c10::toString(tensor.scalar_type()))];
    count = (count.is_null() ? 0 : count.get<int>()) + 1;
    if (is("model/")) ++parameters;
    if (master) ++masters;
    const at::ScalarType wanted = is("model/") ? stored : master ? at::kFloat : moments;
    if (tensor.scalar_type() != wanted) wrong.push_back(name);
  }
  if (masters != (copies ? parameters : 0)) wrong.push_back(fmt::format("{} fp32 copies", masters));
  context.fact("types", counts);
  context.expect("types of parameters, copies and moments", wrong.empty() && parameters > 0,
                 fmt::format("{} of {} tensors have another type than {} with{} fp32 copies needs, the first is {}",
                             wrong.size(), state.tensors.size(), nsa::to_string(config.precision), copies ? "" : "out",
                             wrong.empty() ? "none (there are no parameters)" : wrong.front().get<std::string>()),
                 codes::kTrainingDtype, {{"wrong", wrong}, {"types", counts}});
}

void resume(const Subject& subject, Context& context, Data data, nsa::Precision precision) {
  ResumeTrial trial{.plan = make_plan(subject, context, data), .folder = {}, .open = {}};
  // Two layers hold every kind of tensor; the rest would make the file larger and nothing else.
  nsa::ModelConfig& model = trial.plan.config.model;
  model.n_layers = std::min<std::int64_t>(model.n_layers, 2);
  nsa::TrainConfig& train = trial.plan.config.train;
  train.precision = precision;
  train.steps = 8;
  train.accumulate_grad_batches = 2;
  train.batch_size = std::min<std::int64_t>(train.batch_size, 2);
  train.seq_len = std::min<std::int64_t>(train.seq_len, context.cuda() ? 512 : 96);
  trial.folder =
      context.run_folder() / fmt::format("resume-{}-{}-{}", to_string(data), nsa::to_string(precision), getpid());
  trial.open = [](const RunPlan& plan) { return std::make_unique<nsa::train::Prefetch>(open_data(plan)); };
  const probes::FixedOrder fixed(context.cuda(), probes::FixedOrder::Unfixed::refused);
  judge_resume(subject, trial, context);
}

}  // namespace suites::training_cases
