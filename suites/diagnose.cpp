#include "suites/diagnose.hpp"

#include <fmt/format.h>

#include "harness/codes.hpp"
#include "nsa/config.hpp"
#include "nsa/flags.hpp"
#include "suites/codes.hpp"
#include "suites/locations.hpp"
#include "suites/machine/build.hpp"
#include "suites/machine/control_files.hpp"
#include "suites/machine/flags.hpp"
#include "suites/machine/folder.hpp"
#include "suites/machine/gpu.hpp"
#include "suites/machine/host.hpp"
#include "suites/machine/load.hpp"
#include "suites/machine/variables.hpp"

namespace suites {

namespace {

using harness::Diagnosis;
using harness::Json;
using machine::Inspection;
using Row = Diagnosis::Row;
using State = Diagnosis::State;

void append(Diagnosis& all, Diagnosis part) {
  all.rows.insert(all.rows.end(), part.rows.begin(), part.rows.end());
  all.tables.insert(all.tables.end(), part.tables.begin(), part.tables.end());
}
void append(Diagnosis& all, const Inspection& inspection) {
  const std::vector<Row> rows = rows_of(inspection);
  all.rows.insert(all.rows.end(), rows.begin(), rows.end());
}

bool grave(std::string_view code) {
  for (const harness::Code& row : finding_codes())
    if (row.id == code) return row.severity > reports::Severity::warn;
  return true;
}

// What a value of the provenance says; "unknown" where a worker could not tell.
std::string text_at(const Json& provenance, const std::string& pointer) {
  const Json::json_pointer at("/" + pointer);
  if (!provenance.contains(at)) return "unknown";
  return provenance.at(at).is_string() ? provenance.at(at).get<std::string>() : provenance.at(at).dump();
}

Diagnosis::Table versions(const Json& provenance) {
  Diagnosis::Table table{"Versions", {}};
  for (const auto& [name, pointer] : {std::pair{"program", "program/version"},
                                      {"build", "build/build_id"},
                                      {"commit", "source/git_sha"},
                                      {"changed since the commit", "source/dirty"},
                                      {"compiler", "build/compiler"},
                                      {"LibTorch", "torch/version"},
                                      {"CUDA runtime", "cuda/runtime"},
                                      {"driver", "cuda/driver"},
                                      {"driver supports CUDA", "cuda/driver_supports"},
                                      {"kernel", "host/kernel"}})
    table.rows.push_back({name, text_at(provenance, pointer)});
  return table;
}

Diagnosis about_flags(const harness::Settings& settings, const Json& provenance) {
  Diagnosis found;
  const nsa::Environment environment = nsa::read_environment();
  append(found, machine::judge_flags(environment));
  try {
    Diagnosis::Table table{"Flags in force (field, value, origin, variable, meaning)", {}};
    for (const machine::FlagRow& row : machine::flag_rows(nsa::resolve(environment)))
      table.rows.push_back({row.field, row.value, row.origin, row.variable, row.meaning});
    found.tables.push_back(std::move(table));
    const std::vector<std::string> pins = settings.texts("preflight.expect_environment");
    if (!pins.empty()) append(found, machine::judge_pins(pins, machine::pinned_facts(provenance, environment)));
  } catch (const nsa::FlagInvalid&) {  // stands among the rows already: validate() names it
  } catch (const harness::UsageError&) {
  }
  return found;
}

Diagnosis about_host(const harness::Settings& settings, const Json& provenance) {
  Diagnosis found;
  const machine::Variables variables = machine::variables_of(provenance);
  const machine::HostState host = machine::look_at_host();
  const std::string threads = text_at(provenance, "torch/threads");
  append(found, machine::judge_variables(variables));
  append(found, machine::judge_threads(variables, host.usable_cores(), threads == "unknown" ? 0 : std::stoi(threads)));
  machine::HostNeed need;
  need.memory_bytes = static_cast<std::int64_t>(settings.real("preflight.host_memory_gib") * (1 << 30));
  need.gpus = provenance.contains("gpus") ? static_cast<int>(provenance["gpus"].size()) : 0;
  append(found, machine::judge_host(host, need));
  append(found, machine::judge_load(machine::look_at_load()));
  return found;
}

Diagnosis about_build(const harness::Settings& settings, const Json& provenance) {
  Diagnosis found;
  append(found, machine::judge_build(provenance.at("build")));
  const std::string commit = settings.text("preflight.expect_commit");
  if (!commit.empty())
    append(found, machine::judge_fix(commit, provenance.at("build"),
                                     machine::git_in(provenance.at("source").at("folder").get<std::string>())));
  found.tables.push_back(versions(provenance));
  return found;
}

Row about_drift(const nsa::Config& config, const std::string& expected) {
  std::string text;
  for (const nsa::Drift& d : nsa::drift(config, expected))
    text += fmt::format("{}{} is {}, expected {}", text.empty() ? "" : "; ", d.key, d.actual, d.expected);
  if (text.empty()) return {State::good, "", "the configuration agrees with " + expected};
  return {State::problem, std::string(codes::kConfigDrift), text};
}

Row about_data(const std::filesystem::path& file) {
  std::error_code failed;
  const std::uintmax_t bytes = std::filesystem::file_size(file, failed);
  if (!failed && bytes > 0) return {State::good, "", fmt::format("data: {} bytes in {}", bytes, file.string())};
  return {State::problem, std::string(codes::kFirstBatch),
          fmt::format("data: {} {}", file.string(), failed ? "cannot be read: " + failed.message() : "is empty")};
}

machine::DeviceMemory memory_of(const harness::Settings& settings, const Json& provenance) {
  if (settings.text("run.device") == "cuda") {
    const probes::Nvml nvml = probes::Nvml::load();
    const auto device = nvml.available() ? nvml.device(text_at(provenance, "gpus/0/bus_id")) : std::nullopt;
    const auto memory = device ? nvml.memory(*device) : std::nullopt;
    const bool expandable = machine::allocator_settings(machine::variables_of(provenance)).expandable_segments();
    if (memory)
      return {text_at(provenance, "gpus/0/name"), static_cast<double>(memory->free), static_cast<double>(memory->total),
              expandable};
  }
  const machine::HostState host = machine::look_at_host();
  return {"cpu", static_cast<double>(host.free_bytes()), static_cast<double>(host.memory_bytes), false};
}

// What depends on a configuration that can be loaded.
Diagnosis about_configuration(const harness::Settings& settings, const Json& provenance, const LawOf& law_of) {
  Diagnosis found;
  const nsa::Config config = model_config(settings);
  if (const std::string expected = settings.text("preflight.expect"); !expected.empty())
    found.rows.push_back(about_drift(config, expected));
  if (config.train.data != "synthetic" || !settings.text("data").empty())
    found.rows.push_back(about_data(text_file(settings, config)));
  const machine::DeviceMemory memory = memory_of(settings, provenance);
  const machine::PlannedStep step{config, nsa::resolve(nsa::read_environment()), memory.device != "cpu"};
  std::optional<machine::FittedLaw> law;
  try {
    if (law_of) law = law_of(step, memory.device);
  } catch (const std::runtime_error& error) {
    found.rows.push_back({State::problem, "", fmt::format("memory laws: {}", error.what()), "mend or remove the file"});
  }
  const Inspection estimate = machine::judge_memory(step, memory, law);
  append(found, estimate);
  Diagnosis::Table table{"Memory of a training step", {}};
  for (const auto& [key, value] : estimate.seen.items())
    if (!value.is_object()) table.rows.push_back({key, value.is_string() ? value.get<std::string>() : value.dump()});
  found.tables.push_back(std::move(table));

  const std::filesystem::path folder = settings.text("preflight.train_folder");
  if (!folder.empty()) {
    append(found, machine::judge_control_files(folder, "train_folder", ""));
    append(found, machine::judge_folder(machine::look_at_folder(folder),
                                        {"train_folder", machine::checkpoint_bytes(config), "its checkpoints"}));
  }
  return found;
}

}  // namespace

std::vector<Row> rows_of(const Inspection& inspection) {
  std::vector<Row> rows;
  for (const machine::Judgement& j : inspection.judgements)
    if (!j.holds) rows.push_back({grave(j.code) ? State::problem : State::note, std::string(j.code), j.what_failed});
  if (!rows.empty()) return rows;
  return {{inspection.cannot_tell ? State::note : State::good, "", inspection.summary}};
}

Diagnosis diagnose_gpus(const probes::Nvml& nvml) {
  Diagnosis found;
  if (!nvml.available()) {
    found.rows.push_back({State::note, "", "GPUs: " + nvml.why_not()});
    return found;
  }
  Diagnosis::Table gpus{fmt::format("GPUs (driver {})", nvml.driver_version().value_or("unknown")), {}};
  Diagnosis::Table processes{"Processes on the GPUs (GPU, pid, name, user, bytes, command, how to end it)", {}};
  for (std::uint32_t index = 0; index < nvml.device_count(); ++index) {
    const auto device = nvml.device(index);
    if (!device) {
      found.rows.push_back({State::problem, std::string(codes::kCudaUnusable),
                            fmt::format("GPU {} is listed and cannot be asked for: it may be lost", index)});
      continue;
    }
    const Inspection state = machine::judge_gpu(machine::look_at_gpu(nvml, *device));
    append(found, state);
    gpus.rows.push_back({std::to_string(index), state.summary});
    const probes::GpuCensus census = probes::take_census(nvml, *device);
    append(found, machine::judge_foreign(census, probes::all_processes(census), 0));
    for (const probes::ProcessOnGpu& p : census.processes)
      processes.rows.push_back({std::to_string(index), std::to_string(p.pid), p.name, p.user,
                                p.bytes ? std::to_string(*p.bytes) : "unknown", p.command, probes::how_to_end(p)});
  }
  found.tables.push_back(std::move(gpus));
  if (!processes.rows.empty()) found.tables.push_back(std::move(processes));
  return found;
}

Diagnosis diagnose(const harness::Settings& settings, const Json& provenance, const harness::DeviceProbe&,
                   const LawOf& law_of) {
  Diagnosis all;
  append(all, about_build(settings, provenance));
  append(all, about_flags(settings, provenance));
  append(all, about_host(settings, provenance));
  append(all, diagnose_gpus(probes::Nvml::load()));
  try {
    append(all, about_configuration(settings, provenance, law_of));
  } catch (const nsa::ConfigInvalid&) {  // stands among the rows already: validate() names it
  } catch (const nsa::FlagInvalid&) {
  } catch (const harness::UsageError&) {
  }
  return all;
}

}  // namespace suites
