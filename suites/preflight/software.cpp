// What the program is made of: torch, its own build, flags.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>

#include <stdexcept>

#include "suites/codes.hpp"
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

void build_id(Context& context) {
  const Json& planned = context.planned_provenance();
  if (!planned.contains("build") || !planned["build"].contains("build_id")) {
    throw std::runtime_error("the supervisor journaled no build id: provenance lacks build.build_id");
  }
  const Json& build = planned["build"];
  context.fact("build", build);
  if (!build.contains("source_hash") || build["source_hash"].is_null()) {
    context.fact("build.compared", "no: there is no source tree beside the program to compare with");
    return;
  }
  const std::string compiled = build["build_id"].get<std::string>(), sources = build["source_hash"].get<std::string>();
  context.expect("build.sources", compiled == sources,
                 fmt::format("the program was built from sources {}, those beside it are {}: what was changed since is "
                             "not in the binary",
                             compiled, sources),
                 codes::kBuildStale, build);
}

void flags(Context& context, const nsa::Environment& environment) {
  Json set = Json::object();
  for (const auto& [name, value] : environment) set[name] = value;
  context.fact("flags.set", set);
  bool all_known = true;
  for (const nsa::UnknownFlag& flag : nsa::unknown_flags(environment)) {
    const Json evidence = {{"name", flag.name}, {"value", set[flag.name]}, {"nearest", flag.nearest}};
    if (!flag.remark.empty()) {
      context.finding(codes::kRetiredFlag, fmt::format("{} is set: {}", flag.name, flag.remark), evidence);
      continue;
    }
    all_known = false;
    const std::string hint = flag.nearest.empty() ? "" : fmt::format("; did you mean {}?", flag.nearest);
    context.finding(codes::kUnknownFlag, fmt::format("{} is set and means nothing{}", flag.name, hint), evidence);
  }
  context.fact("flags.all_known", all_known);
}

void facts(Context& context) {
  context.fact("threads",
               {{"within_an_operation", at::get_num_threads()}, {"between_operations", at::get_num_interop_threads()}});
  context.fact("parallel", at::get_parallel_info());
  const Json& planned = context.planned_provenance();
  if (planned.contains("environment")) context.fact("environment", planned["environment"]);
}

}  // namespace suites::preflight_checks
