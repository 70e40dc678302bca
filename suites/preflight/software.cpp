// What the program is made of: torch, its own build, flags.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <stdexcept>

#include "nsa/call.hpp"
#include "nsa/cuda/architectures.hpp"
#include "suites/codes.hpp"
#include "suites/machine/build.hpp"
#include "suites/machine/flags.hpp"
#include "suites/machine/gpu.hpp"
#include "suites/preflight/checks.hpp"

namespace suites::preflight_checks {

std::string torch_version_found() {
  const std::string text = at::show_config();
  const std::string key = "TORCH_VERSION=";
  const std::size_t at = text.find(key);
  if (at == std::string::npos) return "unknown";
  const std::size_t begin = at + key.size();
  return text.substr(begin, text.find_first_of(", \n", begin) - begin);
}

void torch_version(Context& context, const std::string& built, const std::string& found) {
  context.fact("torch", {{"built_for", built}, {"found", found}});
  context.expect("torch.version", found == built,
                 fmt::format("the loaded LibTorch is {}, the program was built for {}", found, built),
                 codes::kTorchVersion, {{"built_for", built}, {"found", found}});
}

void build_id(Context& context, const Json& planned) {
  if (!planned.contains("build") || !planned["build"].contains("build_id")) {
    throw std::runtime_error("the supervisor journaled no build id: provenance lacks build.build_id");
  }
  machine::tell(context, machine::judge_build(planned["build"]));
}

namespace {

// The run is told with the variables that it was started with; what a library sets later is in force all the same.
void flags_as_recorded(Context& context, const nsa::Environment& now) {
  const Json& planned = context.planned_provenance();
  nsa::Environment recorded;
  if (planned.contains("flags") && planned["flags"].contains("set"))
    recorded = planned["flags"]["set"].get<nsa::Environment>();
  Json rows = Json::array();
  std::string text;
  const auto value_in = [](const nsa::Environment& all, const std::string& name) {
    const auto found = all.find(name);
    return found == all.end() ? std::string("unset") : found->second;
  };
  nsa::Environment both = recorded;
  both.insert(now.begin(), now.end());
  for (const auto& [name, either] : both) {
    const std::string was = value_in(recorded, name), is = value_in(now, name);
    if (was == is) continue;
    rows.push_back({{"name", name}, {"expected", was}, {"actual", is}});
    text +=
        fmt::format("{}{} is {} in the worker, and was {} when the run began", text.empty() ? "" : "; ", name, is, was);
  }
  context.expect("flags.as_recorded", rows.empty(), text, codes::kUnexpectedFlags, {{"differences", rows}});
}

}  // namespace

void flags(Context& context, const nsa::Environment& environment) {
  const machine::Inspection inspection = machine::judge_flags(environment);
  machine::tell(context, inspection);
  context.fact("flags.all_known", inspection.sound());
  flags_as_recorded(context, environment);
}

nsa::Call training_call(const Subject& subject, const Context& context) {
  const nsa::Config config = subject.config(context);
  return nsa::call_of(config.model, config.train.batch_size, config.train.seq_len, config.train.precision,
                      device_of(context), /*training=*/true, config.train.packed);
}

void flags_obeyed(Context& context, const nsa::EffectiveFlags& flags, const nsa::Call& step) {
  const nsa::Route route = nsa::route(flags, step);
  Json seen = Json::array();
  for (const nsa::Asked& asked : nsa::asked_by_name(flags, route)) {
    const std::string op(nsa::to_string(asked.op)), taken = nsa::to_string(route[asked.op]);
    seen.push_back({{"flag", asked.by}, {"op", op}, {"wanted", asked.wanted}, {"taken", taken}});
    context.expect(fmt::format("{} for {}", asked.by, op), asked.obeyed,
                   "in a training step of this model " + nsa::describe(asked, route), codes::kFlagNotObeyed,
                   {{"flag", asked.by}, {"op", op}, {"taken", taken}, {"why", route[asked.op].why}});
  }
  context.fact("flags.asked_for", seen);
}

void kernels(Context& context, const nsa::EffectiveFlags& flags, const nsa::Call& step, std::string_view compiled) {
  context.fact("kernels.compiled_for", std::string(compiled));
  if (!flags.use_cuda || flags.force_parity) return context.fact("kernels", "the flags want none");
  const std::string refusal = nsa::architecture_refusal(compiled, step.cuda_major, step.cuda_minor);
  context.expect("kernels.this_gpu", refusal.empty(),
                 fmt::format("no kernel of ours runs on this GPU, sdpa computes instead: {}", refusal),
                 codes::kNoKernels,
                 {{"compiled_for", std::string(compiled)},
                  {"compute_capability", fmt::format("{}.{}", step.cuda_major, step.cuda_minor)}});
}

std::vector<LibraryVersion> library_versions() {
  int runtime = 0;
  (void)cudaRuntimeGetVersion(&runtime);
  // torch's own CUDA, as its build says of itself: "CUDA Runtime 13.0".
  const std::string config = at::show_config(), key = "CUDA Runtime ";
  const std::size_t at = config.find(key);
  const std::string of_torch =
      at == std::string::npos
          ? ""
          : config.substr(at + key.size(), config.find_first_of(", \n", at + key.size()) - at - key.size());
  return {
      {"LibTorch", TORCH_VERSION, torch_version_found(), false},
      {"CUDA runtime", machine::cuda_version(CUDART_VERSION), runtime == 0 ? "" : machine::cuda_version(runtime), true},
      {"CUDA of LibTorch", machine::cuda_version(CUDART_VERSION), of_torch, true}};
}

void libraries(Context& context, const std::vector<LibraryVersion>& versions) {
  Json table = Json::object();
  for (const LibraryVersion& v : versions) {
    table[v.name] = {{"built", v.built}, {"loaded", v.loaded.empty() ? "unknown" : v.loaded}};
    if (v.loaded.empty()) continue;  // told in the table; what does not say its version cannot be judged
    const auto major = [](const std::string& version) { return version.substr(0, version.find('.')); };
    const bool fits = v.same_major_is_enough ? major(v.built) == major(v.loaded) : v.built == v.loaded;
    context.expect("library." + v.name, fits,
                   fmt::format("{} {} is loaded, the program was built with {}", v.name, v.loaded, v.built),
                   codes::kTorchVersion, {{"library", v.name}, {"built", v.built}, {"loaded", v.loaded}});
  }
  context.fact("libraries", table);
}

void facts(Context& context) {
  context.fact("threads",
               {{"within_an_operation", at::get_num_threads()}, {"between_operations", at::get_num_interop_threads()}});
  context.fact("parallel", at::get_parallel_info());
  const Json& planned = context.planned_provenance();
  if (planned.contains("environment")) context.fact("environment", planned["environment"]);
}

}  // namespace suites::preflight_checks
