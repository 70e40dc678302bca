// Every parameter against its initial law, on the device and in the dtype of the run.
#include <algorithm>
#include <memory>
#include <optional>

#include "harness/suite.hpp"
#include "nsa/parameters.hpp"
#include "suites/init_stats/checks.hpp"
#include "suites/subject.hpp"

namespace suites {

using harness::Case;
using harness::Context;
namespace checks = init_checks;

harness::Suite init_stats(const Subject& subject) {
  harness::Suite suite;
  suite.name = "init_stats";
  suite.purpose = "every parameter starts as its law says, from a stream of its own, and the gates tell tokens apart";
  suite.requires_suites = {"preflight"};
  suite.runs_after = "preflight";
  suite.cases = [subject](const harness::Settings& settings) {
    std::vector<Case> cases;
    const auto master = static_cast<std::uint64_t>(settings.integer("run.seed"));
    const std::uint64_t common = harness::derive_seed(master, "init_stats", "weights", 0);
    const auto drawn = std::make_shared<std::optional<Instance>>();
    const auto options = [subject](const Context& context) {
      return ModelOptions{.config = subject.config(context).model,
                          .flags = subject.flags(),
                          .precision = run_precision(context),
                          .device = device_of(context),
                          .seed = context.seed("weights")};
    };
    using Check = void (*)(Context&, const ModelOptions&, nsa::LanguageModelImpl&);
    const auto add = [&](const std::string& name, Check check, harness::Level level = harness::Level::smoke) {
      cases.push_back({.name = name, .level = level, .run = [=](Context& context) {
                         const ModelOptions asked = options(context);
                         context.phase("model");
                         Instance instance = subject.model(asked);
                         check(context, asked, *instance.model);
                       }});
    };
    // These only look at the model, and drawing a large one takes most of their time: the first that runs draws it.
    const auto look = [&](const std::string& name, Check check) {
      cases.push_back({.name = name, .run = [=](Context& context) {
                         ModelOptions asked = options(context);
                         asked.seed = common;
                         context.phase("model");
                         if (!*drawn) *drawn = subject.model(asked);
                         check(context, asked, *(*drawn)->model);
                       }});
    };
    look("parameter_set", checks::parameter_set);
    look("laws", checks::laws);
    look("streams", checks::streams);
    cases.push_back({.name = "laws", .params = {{"phi", "mlp"}}, .run = [=](Context& context) {
                       ModelOptions asked = options(context);
                       if (asked.config.phi == nsa::Phi::mlp)
                         return context.fact("laws", "case init_stats/laws has them: phi is mlp in the configuration");
                       asked.config.phi = nsa::Phi::mlp;
                       asked.config.n_layers = std::min<std::int64_t>(asked.config.n_layers, 3);
                       context.phase("model");
                       Instance instance = subject.model(asked);
                       checks::laws(context, asked, *instance.model);
                     }});
    add("gates", checks::gates);  // runs it, and tells its routes
    cases.push_back({.name = "seeds", .run = [=](Context& context) {
                       ModelOptions asked = options(context);  // a draw of all layers takes half a second
                       asked.config.n_layers = std::min<std::int64_t>(asked.config.n_layers, 3);
                       asked.device = at::kCPU;  // where initial values are drawn, in fp32, whatever becomes of them
                       asked.precision = nsa::Precision::fp32;
                       checks::seeds(subject, context, asked);
                     }});
    cases.push_back({.name = "loaded_parameters", .run = [=](Context& context) {
                       ModelOptions asked = options(context);
                       asked.config.n_layers = std::min<std::int64_t>(asked.config.n_layers, 2);
                       asked.precision = nsa::Precision::fp32;  // which has more to lose
                       checks::loaded_parameters(context, subject.model(asked).model, context.seed("loaded"),
                                                 nsa::load_parameters);
                     }});
    add("shared_streams", checks::shared_streams, harness::Level::standard);
    add("activations", checks::activations, harness::Level::standard);
    add("gradient_scale", checks::gradient_scale, harness::Level::standard);
    add("gate_entropy", checks::gate_entropy, harness::Level::standard);
    add("initial_loss", checks::initial_loss, harness::Level::standard);
    cases.push_back({.name = "processes", .level = harness::Level::standard, .run = [=](Context& context) {
                       checks::processes(context, options(context), "/proc/self/exe");
                     }});
    return cases;
  };
  return suite;
}

}  // namespace suites
