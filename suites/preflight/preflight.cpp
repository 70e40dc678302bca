#include <torch/version.h>

#include <filesystem>

#include "suites/preflight/checks.hpp"
#include "suites/program.hpp"

namespace suites {

namespace checks = preflight_checks;
using harness::Case;
using harness::Context;

std::vector<harness::SettingSpec> preflight_settings() {
  using enum harness::SettingType;
  return {
      {.key = "preflight.expect",
       .type = text,
       .default_value = "",
       .meaning = "configuration file that the one in use must agree with; empty: none",
       .allowed = "a path to a YAML file that sets any subset of a configuration",
       .one_of = {}},
      {.key = "preflight.first_batch_s",
       .type = real,
       .default_value = "20",
       .meaning = "deadline for the first batch of training data, in seconds",
       .allowed = "0.01 to 600",
       .minimum = 0.01,
       .maximum = 600,
       .one_of = {}},
  };
}

harness::Suite preflight(const Subject& subject) {
  harness::Suite suite;
  suite.name = "preflight";
  suite.purpose = "the machine, the build, the configuration and the data are what the run takes them for";
  suite.cases = [subject](const harness::Settings&) {
    std::vector<Case> cases;
    const auto add = [&](const std::string& name, std::function<void(Context&)> run) -> Case& {
      cases.push_back({.name = name, .params = {}, .run = std::move(run)});
      return cases.back();
    };
    const auto flash = [&](const std::string& kind, checks::FlashKind which) {
      Case& c = add("flash", [=](Context& x) { checks::flash_works(subject, x, which); });
      c.params = harness::Params{{"entry", kind}};
      c.needs_cuda = true;
    };

    add("torch", [](Context& x) { checks::torch_version(x, TORCH_VERSION, checks::torch_version_found()); });
    add("build", checks::build_id);
    add("cuda_present", [](Context& x) { checks::cuda_present(x, checks::cuda_state()); });
    add("cuda", checks::cuda_works).needs_cuda = true;
    add("driver", [](Context& x) { checks::driver(x, checks::cuda_state()); }).needs_cuda = true;
    add("gpu_processes", checks::gpu_processes).needs_cuda = true;
    add("halt_files", checks::halt_files);
    add("configuration", [=](Context& x) { checks::configuration(subject, x); });
    add("flags", [](Context& x) { checks::flags(x, nsa::read_environment()); });
    add("flash_refusal", [=](Context& x) { checks::flash_refuses(subject, x); });
    flash("dense", checks::FlashKind::dense);
    flash("window", checks::FlashKind::window);
    flash("varlen", checks::FlashKind::varlen);
    add("first_batch", [=](Context& x) { checks::first_batch_of_data(subject, x); }).timeout =
        std::chrono::seconds(700);  // the deadline is the case's own
    add("facts", checks::facts);
    return cases;
  };
  return suite;
}

}  // namespace suites
