#include <torch/version.h>

#include <filesystem>
#include <fstream>

#include "harness/suite.hpp"
#include "nsa/cuda/architectures.hpp"
#include "suites/preflight/checks.hpp"
#include "suites/preflight/settings.hpp"
#include "suites/subject.hpp"

namespace suites {

namespace checks = preflight_checks;
using harness::Case;
using harness::Context;

harness::Suite preflight(const Subject& subject) {
  harness::Suite suite;
  suite.name = "preflight";
  suite.purpose = "the machine, the build, the configuration and the data are what the run takes them for";
  suite.guards = true;
  suite.settings = preflight_settings();
  suite.cases = [subject](const harness::Settings& settings) {
    std::vector<Case> cases;
    const auto add = [&](const std::string& name, std::function<void(Context&)> run) -> Case& {
      cases.push_back({.name = name, .run = std::move(run)});
      return cases.back();
    };
    const auto flash = [&](const std::string& kind, checks::FlashKind which) {
      Case& c = add("flash", [=](Context& x) { checks::flash_works(subject, x, which); });
      c.params = harness::Params{{"entry", kind}};
      c.needs_cuda = true;
    };

    add("torch", [](Context& x) { checks::torch_version(x, TORCH_VERSION, checks::torch_version_found()); });
    add("build", [=](Context& x) { checks::build_id(x, subject.planned(x)); });
    add("cuda_present", [](Context& x) { checks::cuda_present(x, checks::cuda_state()); });
    add("cuda", checks::cuda_works).needs_cuda = true;
    add("driver", [](Context& x) { checks::driver(x, checks::cuda_state()); }).needs_cuda = true;
    add("gpu_processes", [=](Context& x) { checks::gpu_processes(subject, x); }).needs_cuda = true;
    add("halt_files", checks::halt_files);
    add("configuration", [=](Context& x) { checks::configuration(subject, x); }).brought_by = {"preflight.expect"};
    add("configuration_keys", [](Context& x) {
      const std::filesystem::path file = x.run_folder() / "keys.yaml";
      checks::configuration_keys(x, [&](const std::string& yaml, const std::vector<nsa::Override>& overrides) {
        std::ofstream(file) << yaml;
        return nsa::load_config(file, overrides);
      });
      std::filesystem::remove(file);
    });
    add("flags", [](Context& x) { checks::flags(x, nsa::read_environment()); });
    add("flags_obeyed",
        [=](Context& x) { checks::flags_obeyed(x, subject.flags(), checks::training_call(subject, x)); });
    add("kernels", [=](Context& x) {
      checks::kernels(x, subject.flags(), checks::training_call(subject, x), nsa::compiled_architectures());
    }).needs_cuda = true;
    add("flash_refusal", [=](Context& x) { checks::flash_refuses(subject, x); });
    flash("dense", checks::FlashKind::dense);
    flash("window", checks::FlashKind::window);
    flash("varlen", checks::FlashKind::varlen);
    Case& first_batch = add("first_batch", [=](Context& x) { checks::first_batch_of_data(subject, x); });
    first_batch.timeout = std::chrono::seconds(700);  // the deadline is the case's own
    first_batch.brought_by = {"preflight.first_batch_s", "data"};
    add("facts", checks::facts);
    add("load", checks::load);

    const auto deeper = [&](const std::string& name, std::function<void(Context&)> run) -> Case& {
      Case& c = add(name, std::move(run));
      c.level = harness::Level::standard;
      return c;
    };
    deeper("libraries", [](Context& x) { checks::libraries(x, checks::library_versions()); });
    deeper("variables", checks::variables);
    deeper("threads", checks::threads);
    deeper("host", checks::host).brought_by = {"preflight.host_memory_gib"};
    deeper("run_folder", checks::run_folder_space);
    deeper("gpu_state", checks::gpu_state).needs_cuda = true;
    deeper("memory_estimate", [=](Context& x) { checks::memory_estimate(subject, x); });
    // These only where somebody says what is expected: a check that compares with nothing must not count as passed.
    if (!settings.texts("preflight.expect_environment").empty())
      add("pins", checks::pins).brought_by = {"preflight.expect_environment"};
    if (!settings.text("preflight.expect_commit").empty())
      add("fix", [=](Context& x) { checks::fix(x, subject.planned(x)); }).brought_by = {"preflight.expect_commit"};
    if (!settings.text("preflight.train_folder").empty())
      add("train_folder", [=](Context& x) { checks::train_folder(subject, x); }).brought_by = {
          "preflight.train_folder"};
    return cases;
  };
  return suite;
}

}  // namespace suites
