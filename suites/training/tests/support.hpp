// What the tests of this suite share: running one case with something planted, and looking at what it found.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>

#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"
#include "suites/training/run.hpp"

namespace suites::training_tests {

using tests::finding;
using tests::found;
using tests::listed;
using tests::on_configuration;
using tests::on_model;
using tests::RecordingContext;

inline harness::Settings settings(const std::string& steps = "0", const std::string& floor_steps = "40") {
  harness::Settings s = tests::default_settings(training);
  s.set("training.steps", steps, "test");
  s.set("training.floor_steps", floor_steps, "test");
  return s;
}

// One case of the suite, by the end of its id after "training/", with `seams` planted.
inline RecordingContext run(const std::string& id, const std::shared_ptr<Seams>& seams,
                            const harness::Settings& with = settings()) {
  return tests::run_case(training(Subject(seams)), id, with);
}

// The window reads the value of the token after each key.
inline std::shared_ptr<Seams> leaking_window() {
  return tests::on_ops([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::AttendWindowArgs shifted = args;
      shifted.v = at::roll(args.v, -1, 1);
      return inner(shifted);
    });
    return ops;
  });
}

// A model and rows that make a step of a few milliseconds.
inline void make_quick(nsa::Config& config) {
  config.model.n_layers = 1;
  config.train.batch_size = 2;
  config.train.seq_len = 48;
}
inline training_cases::RunPlan quick_plan(const RecordingContext& context,
                                          training_cases::Data data = training_cases::Data::text) {
  training_cases::RunPlan plan = training_cases::make_plan(Subject(std::make_shared<Seams>()), context, data);
  make_quick(plan.config);
  return plan;
}

}  // namespace suites::training_tests
