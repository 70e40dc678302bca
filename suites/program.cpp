#include "suites/program.hpp"

#include "build_info.hpp"
#include "suites/causes/causes.hpp"
#include "suites/diagnose.hpp"
#include "suites/faults/sources/source_mutants.hpp"
#include "suites/judged.hpp"
#include "suites/preflight/checks.hpp"
#include "suites/providers.hpp"
#include "suites/records.hpp"
#include "suites/registry.hpp"

namespace suites {

harness::Program make_program() {
  const auto seams = std::make_shared<Seams>();
  const Subject subject(seams);

  harness::Program program;
  program.name = kProgramName;
  program.version = build_info::kVersion;
  program.build_id = build_info::kBuildId;
  program.source_dir = build_info::kSourceDir;
  program.settings = common_settings();
  program.sizes = common_sizes();
  for (harness::Suite& suite : all_suites(subject)) {
    program.settings.insert(program.settings.end(), suite.settings.begin(), suite.settings.end());
    program.sizes.insert(program.sizes.end(), suite.sizes.begin(), suite.sizes.end());
    program.suites.push_back(recorded(std::move(suite), subject));
  }
  program.codes = finding_codes();
  program.causes = causes();
  program.faults = faults(seams);
  program.options = {{"--expect", "preflight.expect", "configuration file that the one in use must agree with"},
                     {"--model", "model", "model configuration: a file, or a name in configs/models"},
                     {"--implementation", "implementation",
                      "adapter (a .py file) of an implementation that is judged instead of our own functions"},
                     {"--python", "python", "interpreter that runs it (default python3)"},
                     {"--python-timeout", "python_timeout_s",
                      "seconds that one call of it may take; --hang does not count them (default 60)"}};
  program.verbs = {
      {"adapter", "write an adapter to begin with, or check one: adapter new FILE, adapter check FILE"},
      {"scenario", "plant a day of a seed report and say fact by fact what is found: scenario NAME, --list"},
      {"selftest", "plant every fault of the catalogue, one run each, and say which are found: selftest --help"}};
  program.variables = {"NSA_*"};  // one that is misspelt too: nothing obeys it, and preflight finds it
  program.executed = {"implementation", "python"};
  program.configuration = "model";
  program.probe_device = probe_device;
  program.provenance = [](const harness::Settings& settings) {
    harness::Json all = provenance(settings);
    if (harness::Json own = described_implementation(settings); !own.is_null()) all["implementation"] = std::move(own);
    if (count_of_source_mutants() > 0) all["source_mutants"] = count_of_source_mutants();
    return all;
  };
  program.validate = validate;
  program.health = device_health;
  program.diagnose = [](const auto& settings, const auto& found, const auto& probe) {
    return diagnose(settings, found, probe, preflight_checks::stored_law);
  };
  return program;
}

}  // namespace suites
