#include "suites/subject.hpp"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/utils.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "suites/implementation/ops.hpp"

namespace suites {

namespace {

// Every worker reads the file for itself: it must still hold what the run has planned and will report.
void refuse_another(const nsa::Config& config, const harness::Context& context) {
  const harness::Json& planned = context.planned_provenance();
  if (!planned.contains("config") || !planned["config"].contains("resolved")) return;  // not within a run
  const harness::Json& resolved = planned["config"]["resolved"];
  std::vector<std::string> changed;
  for (const auto& [key, value] : nsa::flatten(config))
    if (!resolved.contains(key) || resolved[key] != value) changed.push_back(key);
  if (!changed.empty())
    throw std::runtime_error(fmt::format("{} changed while the run was going on ({}): this run judges no model",
                                         config.source, fmt::join(changed, ", ")));
}

}  // namespace

nsa::Config Subject::config(const harness::Context& context) const {
  nsa::Config config = model_config(context.settings());
  refuse_another(config, context);
  for (const auto& change : seams_->configuration) change(config);
  return config;
}

nsa::Config Subject::config_as_it_is(const harness::Context& context) const {
  nsa::Config config = model_config(context.settings());
  for (const auto& change : seams_->configuration) change(config);
  return config;
}

harness::Json Subject::planned(const harness::Context& context) const {
  harness::Json planned = context.planned_provenance();
  for (const auto& change : seams_->planned) change(planned);
  return planned;
}

probes::GpuCensus Subject::gpu_processes(probes::GpuCensus taken) const {
  for (const auto& change : seams_->gpu_processes) change(taken);
  return taken;
}

void Subject::pass(RankMoment& moment) const {
  for (const auto& change : seams_->ranks) change(moment);
}

// A planted fault comes on top of what is judged.
nsa::Ops Subject::wrap(nsa::Ops ops, const nsa::Call& call) const {
  if (const auto client = implementation()) ops = implementation::with_implementation(std::move(ops), client, call);
  for (const auto& change : seams_->ops) ops = change(std::move(ops), call);
  return ops;
}

void Subject::judge(std::shared_ptr<implementation::Client> client) const {
  const std::lock_guard lock(made_->mutex);
  made_->implementation = std::move(client);
}

std::shared_ptr<implementation::Client> Subject::implementation() const {
  const std::lock_guard lock(made_->mutex);
  return made_->implementation;
}

nsa::EffectiveFlags Subject::flags() const { return nsa::resolve(nsa::read_environment()); }

Instance Subject::model(const ModelOptions& options) const {
  Instance instance;
  instance.dispatcher = make_dispatcher(options.flags);
  instance.model = nsa::make_model(options.config, options.flags,
                                   {.precision = options.precision,
                                    .device = options.device,
                                    .seed = options.seed,
                                    .ops = [provider = instance.dispatcher->provider(), self = *this](
                                               const nsa::Call& call) { return self.wrap(provider(call), call); },
                                    .parts = instance.dispatcher->parts()});
  for (const auto& change : seams_->model) change(*instance.model);
  return instance;
}

nsa::decode::Decoder Subject::decoder(const Instance& instance, nsa::decode::Options options) const {
  for (const auto& change : seams_->decode) options.ops = change(std::move(options.ops));
  return nsa::decode::Decoder(instance.model, std::move(options));
}

nsa::Ops Subject::ops(const nsa::EffectiveFlags& flags, const nsa::Call& call) const {
  return wrap(make_dispatcher(flags)->ops(call), call);
}

nsa::Ops Subject::ops(nsa::Backend backend, const nsa::Call& call) const {
  return wrap(make_dispatcher({})->ops(backend), call);
}

std::shared_ptr<nsa::Dispatcher> Subject::make_dispatcher(const nsa::EffectiveFlags& flags) const {
  auto made = std::make_shared<nsa::Dispatcher>(flags);
  const std::lock_guard lock(made_->mutex);
  made_->dispatchers.push_back(made);
  return made;
}

std::vector<std::shared_ptr<nsa::Dispatcher>> Subject::take_dispatchers() const {
  const std::lock_guard lock(made_->mutex);
  return std::exchange(made_->dispatchers, {});
}

at::Device device_of(const harness::Context& context) {
  return context.cuda() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

nsa::Precision run_precision(const harness::Context& context) {
  return context.cuda() ? nsa::Precision::bf16 : nsa::Precision::fp32;
}

}  // namespace suites
