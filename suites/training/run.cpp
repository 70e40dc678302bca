#include "suites/training/run.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <list>

#include "suites/codes.hpp"
#include "suites/probes/bit_trace.hpp"
#include "suites/probes/one_thread.hpp"
#include "suites/training/pace.hpp"
#include "suites/training/stops.hpp"

namespace suites::training_cases {

using harness::Context;
using harness::Json;
using nsa::train::StepReport;
using nsa::train::Stop;

namespace {

// Memory for what is seen is taken before the first step, so that it is not taken for growth.
Run prepare(const RunPlan& plan, const MemoryMeter& meter) {
  Run run;
  const auto steps = static_cast<std::size_t>(plan.config.train.steps);
  run.steps.reserve(steps);
  run.memory.reserve(steps);
  run.yardstick_s.reserve(steps);
  run.host_resolution = meter.host_resolution();
  run.host_memory_source = meter.host_source();
  return run;
}

}  // namespace

std::string_view to_string(Data data) { return data == Data::text ? "text" : "synthetic"; }

RunPlan make_plan(const Subject& subject, const Context& context, Data data) {
  RunPlan plan{subject.config(context), subject.flags(), device_of(context)};
  nsa::TrainConfig& train = plan.config.train;
  train.data = data == Data::synthetic ? "synthetic" : text_file(context.settings(), plan.config).string();
  train.packed = false;  // rows of equal length; packed batches are the business of parity and s_sweep
  if (context.settings().boolean("trace")) train.cuda_graph = nsa::CudaGraph::off;  // a replay shows no stage
  return plan;
}

std::unique_ptr<nsa::train::BatchStream> open_data(const RunPlan& plan, nsa::train::Split split) {
  const nsa::TrainConfig& train = plan.config.train;
  const bool crops = plan.data() == Data::text && std::filesystem::path(train.data).extension() != ".jsonl";
  return nsa::train::open_stream({.data = train.data,
                                  .batch_size = train.batch_size,
                                  .seq_len = train.seq_len,
                                  .seed = train.seed,
                                  .split = split,
                                  .validation_share = kValidationShare,
                                  .order = crops ? nsa::train::Order::random_crops : nsa::train::Order::sequential,
                                  .vocab = plan.config.model.vocab});
}

Instance make_model(const Subject& subject, const RunPlan& plan) {
  return subject.model({.config = plan.config.model,
                        .flags = plan.flags,
                        .precision = plan.config.train.precision,
                        .device = plan.device,
                        .seed = plan.config.train.seed});
}

bool Run::finished(const nsa::TrainConfig& config) const {
  return static_cast<std::int64_t>(steps.size()) == config.steps && went_on(steps.back());
}

std::vector<double> Run::losses() const {
  std::vector<double> all;
  for (const StepReport& s : steps) {
    if (went_on(s)) all.push_back(s.loss);
  }
  return all;
}

RecordedStream::Room room_for(const RunPlan& plan) {
  const nsa::TrainConfig& train = plan.config.train;
  return {train.steps * train.accumulate_grad_batches, train.batch_size, train.seq_len + 1};
}

Run train(nsa::LanguageModel model, const RunPlan& plan, Context& context) {
  const nsa::TrainConfig& config = plan.config.train;
  const probes::ThreadsFor threads(plan.config.model.dim, plan.device.is_cuda());
  const MemoryMeter meter(plan.device);
  const Yardstick yardstick(plan.device);
  Run run = prepare(plan, meter);

  const auto stream = std::make_shared<RecordedStream>(open_data(plan), room_for(plan));
  nsa::train::Trainer trainer(model, config, stream);
  std::list<UpdateWitness> witnesses;
  if (UpdateWitness::can_watch(config))
    for (const char* name : {"norm.weight", "layers.0.attention.gate.fc2.weight"}) {
      witnesses.emplace_back(model->named_parameters()[name], config);
      run.watched.push_back({name});
      run.watched.back().updates.reserve(static_cast<std::size_t>(config.steps));
    }

  probes::BitTrace trace(context, *model);
  Weights before = copy_weights(*model);
  bool kept = true;
  for (std::int64_t step = 0; step < config.steps; ++step) {
    // A run that stands still is said to stand at its last phase: of a short one, or early, that is the step itself.
    if (step < 10 || step % 10 == 0) context.phase(fmt::format("step {} of {}", step, config.steps));
    refresh(before, *model);
    run.steps.push_back(trainer.step());
    context.progress();
    const StepReport& report = run.steps.back();
    trace.add("loss of the step", at::scalar_tensor(report.loss, at::kDouble));
    trace.add_parameters();
    trace.end_step(step);
    kept = check_guard(report, before, *model, context) && kept;
    if (!went_on(report)) {
      report_stop(report, context);
      break;
    }
    auto watched = run.watched.begin();
    for (UpdateWitness& witness : witnesses) watched++->updates.push_back(witness.after(report));
    run.yardstick_s.push_back(yardstick.seconds());
    run.memory.push_back(meter.now());
  }
  if (kept) context.expect("weights_kept", true, "", codes::kGuardMissed);
  auto watched = run.watched.begin();
  for (const UpdateWitness& witness : witnesses) watched++->mistakes = witness.mistakes();
  run.tokens = stream->tokens();
  return run;
}

Json table(const Run& run) {
  Json rows = Json::array();
  for (const StepReport& s : run.steps) {
    rows.push_back({{"step", s.step},
                    {"loss", reports::number(s.loss)},
                    {"lr", reports::number(s.lr)},
                    {"grad_norm", reports::number(s.grad_norm)},
                    {"ms", reports::number(1e3 * s.seconds)},
                    {"stop", nsa::train::to_string(s.stop)}});
  }
  return rows;
}

}  // namespace suites::training_cases
