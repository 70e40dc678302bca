#include "suites/machine/gpu.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/statistics.hpp"
#include "suites/codes.hpp"

namespace suites::machine {

namespace {

// Memory that no visible process explains but that is not yet worth a finding: contexts and libraries of this run's own
// processes, ECC and firmware reserves.
constexpr std::int64_t kUnexplainedBytes = std::int64_t{4} << 30;
constexpr double kPowerShare = 0.95;  // of the default limit: below, somebody lowered it
constexpr double kClockShare = 0.7;   // of the highest clock, under load: a full GPU's power limit explains the rest

// An idle GPU has no reason to be held back; a busy one may be at its power limit.
bool grave(const std::string& reason) {
  return reason.find("thermal") != std::string::npos || reason == "hw_slowdown" || reason == "hw_power_brake";
}
std::vector<std::string> grave_ones(const std::vector<std::string>& reasons) {
  std::vector<std::string> found;
  std::copy_if(reasons.begin(), reasons.end(), std::back_inserter(found), grave);
  return found;
}

Json to_json(const GpuState& s) {
  Json json = {{"name", s.name}, {"uuid", s.uuid}, {"held_back_by", s.held_back_by}};
  if (s.memory) {
    json["total_bytes"] = s.memory->total;
    json["free_bytes"] = s.memory->free;
  }
  if (s.clocks) {
    json["sm_mhz"] = s.clocks->sm_mhz;
    json["sm_max_mhz"] = s.clocks->sm_max_mhz;
    json["memory_mhz"] = s.clocks->memory_mhz;
  }
  if (s.power) {
    json["power_w"] = s.power->draw_w;
    json["power_limit_w"] = s.power->limit_w;
    json["power_default_limit_w"] = s.power->default_limit_w;
  }
  if (s.celsius) json["temperature_c"] = *s.celsius;
  if (s.errors) {
    json["uncorrected_ecc_errors"] = s.errors->uncorrected;
    json["uncorrected_ecc_errors_lifetime"] = s.errors->uncorrected_lifetime;
    json["rows_pending"] = s.errors->rows_pending;
    json["rows_failed"] = s.errors->rows_failed;
  }
  return json;
}

std::string summary_of(const GpuState& s) {
  std::string text = "GPU " + (s.name.empty() ? std::string("without a name") : s.name);
  if (s.memory)
    text += fmt::format(", {} of {} free", in_words(static_cast<double>(s.memory->free)),
                        in_words(static_cast<double>(s.memory->total)));
  if (s.clocks) text += fmt::format(", SM clock {} of {} MHz", s.clocks->sm_mhz, s.clocks->sm_max_mhz);
  if (s.power) text += fmt::format(", {:.0f} W of {:.0f} W", s.power->draw_w, s.power->limit_w);
  if (s.celsius) text += fmt::format(", {} C", *s.celsius);
  return text;
}

}  // namespace

GpuState look_at_gpu(const probes::Nvml& nvml, probes::Nvml::Device device) {
  GpuState state;
  state.name = nvml.name(device).value_or("");
  state.uuid = nvml.uuid(device).value_or("");
  state.memory = nvml.memory(device);
  state.clocks = nvml.clocks(device);
  state.power = nvml.power(device);
  state.celsius = nvml.temperature(device);
  state.held_back_by = probes::throttle_words(nvml.throttle_reasons(device).value_or(0));
  state.errors = nvml.errors(device);
  return state;
}

Inspection judge_gpu(const GpuState& state) {
  Inspection result;
  result.subject = "gpu.state";
  result.seen = to_json(state);
  result.summary = summary_of(state);
  const std::vector<std::string> reasons = grave_ones(state.held_back_by);
  result.judgements.push_back(
      {"gpu.held_back", reasons.empty(),
       fmt::format("the GPU is held back although nothing is at work: {}", fmt::join(reasons, ", ")),
       codes::kGpuHeldBack, result.seen});
  if (state.power) {
    const auto& [draw, limit, normal] = *state.power;
    result.judgements.push_back({"gpu.power_limit", limit >= kPowerShare * normal,
                                 fmt::format("the power limit is {:.0f} W, the board's own is {:.0f} W", limit, normal),
                                 codes::kGpuHeldBack, result.seen});
  }
  if (state.errors) {
    const probes::GpuErrors& e = *state.errors;
    result.judgements.push_back(
        {"gpu.ecc", e.uncorrected == 0,
         fmt::format("{} uncorrectable memory error(s) since the driver was loaded", e.uncorrected), codes::kGpuFault,
         result.seen});
    result.judgements.push_back({"gpu.rows", !e.rows_pending && !e.rows_failed,
                                 e.rows_failed ? "a broken row of memory could not be replaced"
                                               : "broken rows of memory wait for a reset of the GPU",
                                 codes::kGpuFault, result.seen});
  }
  return result;
}

Inspection judge_clocks(const ClocksUnderLoad& clocks) {
  Inspection result;
  result.subject = "gpu.clocks_under_load";
  result.seen = {
      {"samples", clocks.sm_mhz.size()}, {"sm_max_mhz", clocks.sm_max_mhz}, {"held_back_by", clocks.held_back_by}};
  if (clocks.sm_mhz.empty() || !(clocks.sm_max_mhz > 0)) {
    result.summary = "clocks under load: the driver does not tell";
    result.cannot_tell = true;
    return result;
  }
  const double median = base::upper_median(clocks.sm_mhz);
  result.seen["sm_mhz_median"] = median;
  result.summary = fmt::format("clocks under load: {:.0f} of {:.0f} MHz", median, clocks.sm_max_mhz);
  result.judgements.push_back(
      {"gpu.clock_share", median >= kClockShare * clocks.sm_max_mhz,
       fmt::format("under load the SM clock is {:.0f} MHz, {:.0f} % of the {:.0f} MHz that the "
                   "GPU can do{}",
                   median, 100 * median / clocks.sm_max_mhz, clocks.sm_max_mhz,
                   clocks.held_back_by.empty() ? "" : fmt::format(" ({})", fmt::join(clocks.held_back_by, ", "))),
       codes::kGpuHeldBack, result.seen});
  const std::vector<std::string> reasons = grave_ones(clocks.held_back_by);
  result.judgements.push_back({"gpu.held_back_under_load", reasons.empty(),
                               fmt::format("a second of work is enough to be held back: {}", fmt::join(reasons, ", ")),
                               codes::kGpuHeldBack, result.seen});
  return result;
}

Inspection judge_foreign(const probes::GpuCensus& census, const probes::ForeignProcesses& foreign,
                         std::int64_t own_bytes) {
  Inspection result;
  result.subject = "gpu.processes";
  Json memory = {{"own_bytes", own_bytes}};
  if (census.memory) {
    memory["used_bytes"] = census.memory->used;
    memory["total_bytes"] = census.memory->total;
  }
  result.seen["memory"] = memory;
  if (!foreign.can_tell) {
    result.seen["foreign"] = "cannot tell: " + foreign.why_not;
    result.summary = "other processes on the GPU: cannot tell: " + foreign.why_not;
    result.cannot_tell = true;
    if (!census.memory) return result;
    // A process that cannot be seen still shows in what the device has given away.
    const std::int64_t unexplained = static_cast<std::int64_t>(census.memory->used) - own_bytes;
    result.judgements.push_back({"gpu.unexplained_bytes",
                                 unexplained <= kUnexplainedBytes,
                                 fmt::format("{} bytes of the GPU are in use by processes that are not visible here; "
                                             "allowed {}",
                                             unexplained, kUnexplainedBytes),
                                 codes::kForeignProcess,
                                 {{"processes", "not visible here"}, {"memory", memory}}});
    return result;
  }
  Json listed = Json::array();
  std::string names;
  for (const probes::ProcessOnGpu& process : foreign.foreign) {
    const Json bytes = process.bytes ? Json(*process.bytes) : Json("unknown");
    listed.push_back({{"pid", process.pid},
                      {"name", process.name},
                      {"bytes", bytes},
                      {"command", process.command},
                      {"user", process.user},
                      {"how_to_end", probes::how_to_end(process)}});
    names +=
        fmt::format("{}{} [{}]", names.empty() ? "" : ", ", probes::describe(process), probes::how_to_end(process));
  }
  result.seen["foreign"] = listed;
  result.summary = fmt::format("other processes on the GPU: {}", foreign.foreign.size());
  result.judgements.push_back({"gpu.foreign_processes",
                               foreign.foreign.empty(),
                               "on this GPU: " + names,
                               codes::kForeignProcess,
                               {{"processes", listed}, {"memory", memory}}});
  return result;
}

std::string cuda_version(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace suites::machine
