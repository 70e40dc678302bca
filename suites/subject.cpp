#include "suites/subject.hpp"

#include <ATen/Context.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/utils.h>

#include "build_info.hpp"
#include "suites/program.hpp"
#include "suites/providers.hpp"

namespace suites {

namespace {

nsa::Ops wrap(nsa::Ops ops, const nsa::Call& call, const Seams& seams) {
  for (const auto& change : seams.ops) ops = change(std::move(ops), call);
  return ops;
}

}  // namespace

nsa::Config Subject::config(const harness::Context& context) const {
  nsa::Config config = nsa::load_config(model_file(context.settings()));
  for (const auto& change : seams_->configuration) change(config);
  return config;
}

nsa::EffectiveFlags Subject::flags() const { return nsa::resolve(nsa::read_environment()); }

Instance Subject::model(const ModelOptions& options) const {
  Instance instance;
  instance.dispatcher = std::make_shared<nsa::Dispatcher>(options.flags);
  nsa::Runtime runtime;
  runtime.flags = options.flags;
  runtime.ops = [provider = instance.dispatcher->provider(), seams = seams_](const nsa::Call& call) {
    return wrap(provider(call), call, *seams);
  };
  torch::manual_seed(options.seed);
  instance.model = nsa::LanguageModel(options.config, std::move(runtime));
  instance.model->to(options.device, scalar_type(options.precision));
  for (const auto& change : seams_->model) change(*instance.model);
  return instance;
}

nsa::Ops Subject::ops(const nsa::EffectiveFlags& flags, const nsa::Call& call) const {
  return wrap(nsa::assemble(nsa::route(flags, call), flags), call, *seams_);
}

nsa::Ops Subject::ops(nsa::Backend backend, const nsa::Call& call) const {
  return wrap(nsa::backend_ops(backend), call, *seams_);
}

std::vector<harness::SettingSpec> common_settings() {
  using enum harness::SettingType;
  return {
      {.key = "model",
       .type = text,
       .default_value = "auto",
       .meaning = "model configuration: a file, a name in configs/models, or auto",
       .allowed = "auto (tiny on the CPU, m7c_125m on a GPU), a name in configs/models, or a path to a YAML file"},
      {.key = "data",
       .type = text,
       .default_value = "",
       .meaning = "text that training reads as bytes; empty: train.data of the model's configuration",
       .allowed = "a path"},
  };
}

std::filesystem::path data_folder() {
  harness::Program self;
  self.name = kProgramName;
  self.source_dir = build_info::kSourceDir;
  return harness::data_folder(self);
}

std::filesystem::path model_file(const harness::Settings& settings) {
  std::string name = settings.text("model");
  if (name == "auto") name = settings.text("run.device") == "cuda" ? "m7c_125m" : "tiny";
  if (std::filesystem::is_regular_file(name)) return name;
  const std::filesystem::path folder = data_folder() / "configs" / "models";
  if (std::filesystem::is_regular_file(folder / (name + ".yaml"))) return folder / (name + ".yaml");

  std::vector<std::string> known = {"auto"};
  for (const auto& entry : std::filesystem::directory_iterator(folder)) known.push_back(entry.path().stem().string());
  const std::string near = harness::nearest(name, known);
  throw harness::UsageError(fmt::format("model: '{}' is neither a file nor a model in {} (known: {}){}", name,
                                        folder.string(), fmt::join(known, ", "),
                                        near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
}

std::filesystem::path text_file(const harness::Settings& settings, const nsa::Config& config) {
  const std::string chosen = settings.text("data");
  const std::filesystem::path path = chosen.empty() ? config.train.data : chosen;
  return path.is_absolute() || std::filesystem::exists(path) ? path : data_folder() / path;
}

at::Device device_of(const harness::Context& context) {
  return context.cuda() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

nsa::Call make_call(const nsa::ModelConfig& model, std::int64_t B, std::int64_t S, nsa::Precision precision,
                    at::Device device, bool training, bool packed) {
  nsa::Call call;
  call.B = B;
  call.S = S;
  call.Hq = model.n_heads;
  call.G = model.n_kv_groups;
  call.Dk = model.d_k;
  call.Dv = model.d_v;
  call.geometry = model.nsa;
  call.precision = precision;
  call.training = training;
  call.packed = packed;
  call.cuda = device.is_cuda();
  if (call.cuda) {
    cudaDeviceGetAttribute(&call.cuda_major, cudaDevAttrComputeCapabilityMajor, device.index());
    cudaDeviceGetAttribute(&call.cuda_minor, cudaDevAttrComputeCapabilityMinor, device.index());
  }
  return call;
}

at::ScalarType scalar_type(nsa::Precision precision) {
  switch (precision) {
    case nsa::Precision::fp64:
      return at::kDouble;
    case nsa::Precision::fp32:
      return at::kFloat;
    case nsa::Precision::bf16:
      return at::kBFloat16;
  }
  return at::kFloat;
}

}  // namespace suites
