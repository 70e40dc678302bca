// The suite `training`: the training loop on real text, its guards, and the floor that no honest model can go below.
#include "suites/program.hpp"
#include "suites/training/cases.hpp"

namespace suites {

using harness::Case;
using harness::Context;

std::vector<harness::SettingSpec> training_settings() {
  using enum harness::SettingType;
  return {
      {.key = "training.steps",
       .type = integer,
       .default_value = "0",
       .meaning = "steps on real text; 0: train.steps of the model's configuration",
       .allowed = "0, or 4 and more",
       .minimum = 0},
      {.key = "training.floor_steps",
       .type = integer,
       .default_value = "40",
       .meaning = "steps on random tokens before the loss is held against ln V",
       .allowed = "10 and more",
       .minimum = 10},
  };
}

harness::Suite training(const Subject& subject) {
  const auto with_subject = [subject](void (*run)(const Subject&, Context&)) {
    return [subject, run](Context& context) { run(subject, context); };
  };
  harness::Suite suite;
  suite.name = "training";
  suite.purpose =
      "Ten steps on real text lower the loss without an anomaly, the guards stop before a bad update, and "
      "random tokens are never predicted better than chance.";
  suite.requires_suites = {"forward"};
  suite.cases = [=](const harness::Settings&) -> std::vector<Case> {
    return {
        {.name = "real_text", .params = {}, .run = with_subject(training_cases::real_text)},
        {.name = "loss_floor", .params = {}, .run = with_subject(training_cases::loss_floor)},
        {.name = "guards", .params = {}, .run = with_subject(training_cases::guards)},
    };
  };
  return suite;
}

}  // namespace suites
