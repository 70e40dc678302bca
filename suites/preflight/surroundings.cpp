// What surrounds the program: environment variables, threads, pins, the commit that must be in, the host.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include "suites/machine/build.hpp"
#include "suites/machine/host.hpp"
#include "suites/machine/load.hpp"
#include "suites/machine/variables.hpp"
#include "suites/preflight/checks.hpp"

namespace suites::preflight_checks {

void variables(Context& context) {
  const machine::Variables set = machine::variables_of(context.planned_provenance());
  machine::tell(context, machine::judge_variables(set));
  const machine::AllocatorSettings allocator = machine::allocator_settings(set);
  context.fact("allocator", {{"set_by", allocator.variable},
                             {"settings", allocator.known},
                             {"expandable_segments", allocator.expandable_segments()}});
}

void threads(Context& context) {
  machine::tell(context, machine::judge_threads(machine::variables_of(context.planned_provenance()),
                                                machine::look_at_host().usable_cores(), at::get_num_threads()));
}

void pins(Context& context) {
  const nsa::Environment environment = nsa::read_environment();
  machine::tell(context, machine::judge_pins(context.settings().texts("preflight.expect_environment"),
                                             machine::pinned_facts(context.planned_provenance(), environment)));
}

void fix(Context& context, const Json& planned) {
  const std::string folder = planned.at("source").at("folder").get<std::string>();
  machine::tell(context, machine::judge_fix(context.settings().text("preflight.expect_commit"), planned.at("build"),
                                            machine::git_in(folder)));
}

void host(Context& context) {
  machine::HostNeed need;
  need.memory_bytes = static_cast<std::int64_t>(context.settings().real("preflight.host_memory_gib") * (1 << 30));
  need.gpus = context.cuda() ? static_cast<int>(torch::cuda::device_count()) : 0;
  machine::tell(context, machine::judge_host(machine::look_at_host(), need));
}

void load(Context& context) { machine::tell(context, machine::judge_load(machine::look_at_load())); }

}  // namespace suites::preflight_checks
