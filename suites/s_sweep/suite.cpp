// s_sweep: no length, no content and no scale of the logits gives a non-finite value, forward or backward.
#include "harness/suite.hpp"
#include "suites/s_sweep/cases.hpp"
#include "suites/subject.hpp"

namespace suites {

namespace {

std::vector<harness::Case> plan(const Subject& subject, const harness::Settings& settings) {
  const s_sweep_cases::Plan given{subject, model_config(settings).model.nsa, settings};
  if (judges_implementation(settings)) return s_sweep_cases::plan_implementation(given);
  std::vector<harness::Case> cases;
  for (const auto& kind : {s_sweep_cases::plan_lengths, s_sweep_cases::plan_ops, s_sweep_cases::plan_models,
                           s_sweep_cases::plan_long, s_sweep_cases::plan_watch, s_sweep_cases::plan_coverage}) {
    for (harness::Case& c : kind(given)) cases.push_back(std::move(c));
  }
  return cases;
}

std::vector<harness::SettingSpec> settings() {
  using enum harness::SettingType;
  return {{.key = "s_sweep.lengths",
           .type = integer_list,
           .default_value = "[128, 512, 1024, 2048]",
           .meaning = "lengths to sweep, besides the block boundaries of the model",
           .allowed = "positive integers",
           .minimum = 1,
           .maximum = 1 << 20},
          {.key = "s_sweep.logit_scales",
           .type = real_list,
           .default_value = "[0.001, 30, 10000]",
           .meaning = "factors on the queries of every branch (1 is what the lengths are swept with)",
           .allowed = "positive numbers",
           .minimum = 1e-30,
           .maximum = 1e30},
          {.key = "s_sweep.standard_scales",
           .type = real_list,
           .default_value = "[0.001, 1, 30, 120, 10000]",
           .meaning = "factors on the logits in the covering designs of the standard level",
           .allowed = "positive numbers, not more than 10000",
           .minimum = 1e-6,
           .maximum = 1e4},
          {.key = "s_sweep.long_lengths",
           .type = integer_list,
           .default_value = "[4096, 8193, 16384, 32767, 65536]",
           .meaning = "long lengths, swept with one layer",
           .allowed = "positive integers",
           .minimum = 1,
           .maximum = 1 << 20},
          {.key = "s_sweep.longest_on_cpu",
           .type = integer,
           .default_value = "8193",
           .meaning = "the longest of s_sweep.long_lengths that runs without a GPU",
           .allowed = "a positive integer",
           .minimum = 1,
           .maximum = 1 << 20},
          {.key = "s_sweep.watch_rounds",
           .type = integer,
           .default_value = "30",
           .meaning = "training steps of each kind that the watch's cost is measured with, at most",
           .allowed = "1 to 1000",
           .minimum = 1,
           .maximum = 1000},
          {.key = "s_sweep.watch_percent",
           .type = real,
           .default_value = "10",
           .meaning = "the most by which the watch for non-finite values may slow a training step on a GPU, in percent",
           .allowed = "a positive number",
           .minimum = 0.001,
           .maximum = 1000}};
}

}  // namespace

harness::Suite s_sweep(const Subject& subject) {
  return {.name = "s_sweep",
          .purpose = "no sequence length, content or scale of the logits gives a non-finite value, forward or backward",
          .requires_suites = {"forward"},
          .cases = [subject](const harness::Settings& settings) { return plan(subject, settings); },
          .settings = settings(),
          .sizes = {{"s_sweep.lengths", 1, "S"}},
          .runs_after = "flag_matrix",
          .judges_implementation = true};
}

}  // namespace suites
