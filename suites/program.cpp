#include "suites/program.hpp"

#include "build_info.hpp"
#include "suites/diagnose.hpp"
#include "suites/preflight/checks.hpp"
#include "suites/providers.hpp"
#include "suites/records.hpp"

namespace suites {

harness::Program make_program() {
  const auto seams = std::make_shared<Seams>();
  const Subject subject(seams);

  harness::Program program;
  program.name = kProgramName;
  program.version = build_info::kVersion;
  program.build_id = build_info::kBuildId;
  program.source_dir = build_info::kSourceDir;
  program.suites = {preflight(subject), init_stats(subject), forward(subject),  flag_matrix(subject), s_sweep(subject),
                    autograd(subject),  parity(subject),     training(subject), throughput(subject)};
  for (harness::Suite& suite : program.suites) suite = recorded(std::move(suite), subject);
  program.codes = finding_codes();
  program.faults = faults(seams);
  for (const auto& settings : {common_settings(), preflight_settings(), s_sweep_settings(), parity_settings(),
                               training_settings(), throughput_settings()}) {
    program.settings.insert(program.settings.end(), settings.begin(), settings.end());
  }
  program.options = {{"--expect", "preflight.expect", "configuration file that the one in use must agree with"},
                     {"--model", "model", "model configuration: a file, or a name in configs/models"}};
  program.probe_device = probe_device;
  program.provenance = provenance;
  program.validate = validate;
  program.health = device_health;
  program.diagnose = [](const auto& settings, const auto& found, const auto& probe) {
    return diagnose(settings, found, probe, preflight_checks::stored_law);
  };
  return program;
}

}  // namespace suites
