// `nsa-doctor`: the verb `doctor` of nsa-validate, made without LibTorch, for a machine on which nsa-validate does not
// start because LibTorch cannot be loaded. It asks the worker of the nsa-validate beside it, and tells what that says.
#include <filesystem>
#include <vector>

#include "build_info.hpp"
#include "harness/program.hpp"
#include "suites/codes.hpp"
#include "suites/diagnose.hpp"
#include "suites/locations.hpp"
#include "suites/preflight/settings.hpp"
#include "suites/providers.hpp"

namespace {

harness::Program make_program() {
  harness::Program program;
  program.name = suites::kProgramName;
  program.version = build_info::kVersion;
  program.build_id = build_info::kBuildId;
  program.source_dir = build_info::kSourceDir;
  program.codes = suites::finding_codes();
  for (const auto& settings : {suites::common_settings(), suites::preflight_settings()})
    program.settings.insert(program.settings.end(), settings.begin(), settings.end());
  program.provenance = suites::provenance;
  program.validate = suites::validate;
  program.diagnose = [](const auto& settings, const auto& provenance, const auto& probe) {
    return suites::diagnose(settings, provenance, probe);
  };
  program.worker = std::filesystem::read_symlink("/proc/self/exe").parent_path() / suites::kProgramName;
  return program;
}

}  // namespace

// Options as of `nsa-validate doctor`, but for the settings of other suites, which it does not know.
int main(int argc, char** argv) {
  std::vector<char*> words(argv, argv + argc);
  std::string verb = "doctor";
  if (argc < 2 || words[1] != verb) words.insert(words.begin() + 1, verb.data());
  words.push_back(nullptr);
  return harness::run_program(make_program(), static_cast<int>(words.size()) - 1, words.data());
}
