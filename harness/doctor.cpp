// The verb `doctor`: for people who set up a machine, before anything is run.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "harness/probe.hpp"
#include "harness/provenance.hpp"
#include "harness/run.hpp"
#include "harness/run_folder.hpp"
#include "harness/verbs.hpp"

namespace harness {

namespace fs = std::filesystem;

namespace {

constexpr std::uintmax_t kNeededBytes = 100 << 20;

void print_value(const std::string& key, const Json& value) {
  if (value.is_object()) {
    for (const auto& [name, child] : value.items()) print_value(key.empty() ? name : key + "." + name, child);
  } else {
    fmt::print("  {:32} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
}

class Checkup {
 public:
  void good(const std::string& what) { fmt::print("ok       {}\n", what); }
  void note(const std::string& what) { fmt::print("note     {}\n", what); }
  void bad(const std::string& what) {
    fmt::print("UNUSABLE {}\n", what);
    usable_ = false;
  }
  [[nodiscard]] bool usable() const { return usable_; }

 private:
  bool usable_ = true;
};

void check_gpu(Checkup& checkup, bool needed, const DeviceProbe& probe) {
  if (probe.cuda_usable)
    checkup.good("a GPU works");
  else if (needed)
    checkup.bad("no usable GPU: " + probe.why_not);
  else
    checkup.note("no usable GPU, runs use the CPU: " + probe.why_not);
  if (!probe.provenance.is_object() || probe.provenance.empty()) checkup.bad("workers do not start: " + probe.why_not);
}

void check_output(Checkup& checkup, const CommandLine& line) {
  try {
    const fs::path folder = RunFolder(line.out, new_run_id(), line.force).path();
    checkup.good("runs can be written to " + folder.parent_path().string());
    fs::path existing = folder;
    while (!fs::exists(existing)) existing = existing.parent_path();
    const auto space = fs::space(existing);
    const std::string free = fmt::format("{:.1f} GiB free there", static_cast<double>(space.available) / (1 << 30));
    if (space.available < kNeededBytes)
      checkup.bad(free);
    else
      checkup.good(free);
  } catch (const UsageError& error) {
    checkup.bad(error.what());
  }
}

void check_build(Checkup& checkup, const Json& build) {
  if (build.at("source_hash").is_null())
    checkup.note("the sources of this binary are not on this machine");
  else if (build.at("source_hash") == build.at("build_id"))
    checkup.good("the binary is built from the sources as they are");
  else
    checkup.note("the sources have changed since the binary was built: build again");
}

}  // namespace

reports::ExitCode doctor(const Program& program, const CommandLine& line) {
  Settings settings = make_settings(program, line);
  const DeviceProbe probe = probe_in_worker(settings.real("run.start_s"));
  const bool needs_gpu = line.require_cuda || settings.text("run.device") == "cuda";
  if (settings.text("run.device") == "auto")
    settings.set("run.device", probe.cuda_usable ? "cuda" : "cpu", "the machine");

  Checkup checkup;
  Program known = program;
  try {
    if (program.validate) program.validate(settings);
    checkup.good("configuration and flags make sense");
  } catch (const UsageError& error) {
    checkup.bad(error.what());
    known.provenance = nullptr;  // it could not be told either
  }
  Json found = provenance(known, settings, line);
  found.erase("settings");  // --show-config prints them
  check_gpu(checkup, needs_gpu, probe);
  check_output(checkup, line);
  check_build(checkup, found.at("build"));
  fmt::print("\n");
  print_value("", found);
  if (probe.provenance.is_object()) print_value("", probe.provenance);
  return checkup.usable() ? reports::ExitCode::ready : reports::ExitCode::infrastructure;
}

}  // namespace harness
