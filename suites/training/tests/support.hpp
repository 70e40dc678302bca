// What the tests of this suite share: running one case with something planted, and looking at what it found.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "suites/registry.hpp"
#include "suites/tests/recording_context.hpp"
#include "suites/training/run.hpp"

namespace suites::training_tests {

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
  const harness::Suite suite = training(Subject(seams));
  for (const harness::Case& c : suite.cases(with)) {
    if (harness::case_id(suite.name, c) != "training/" + id) continue;
    RecordingContext context(with, "training/" + id);
    c.run(context);
    return context;
  }
  throw std::logic_error("no case " + id);
}

inline bool found(const RecordingContext& context, std::string_view code) {
  return std::any_of(context.findings.begin(), context.findings.end(), [&](const auto& f) { return f.code == code; });
}
inline const RecordingContext::Found& finding(const RecordingContext& context, std::string_view code) {
  const auto it =
      std::find_if(context.findings.begin(), context.findings.end(), [&](const auto& f) { return f.code == code; });
  if (it == context.findings.end()) throw std::logic_error("no finding " + std::string(code));
  return *it;
}
inline std::string listed(const RecordingContext& context) {
  std::string text;
  for (const auto& f : context.findings) text += f.code + ": " + f.message + "\n";
  return text;
}

inline std::shared_ptr<Seams> on_model(std::function<void(nsa::LanguageModelImpl&)> change) {
  auto seams = std::make_shared<Seams>();
  seams->model.push_back(std::move(change));
  return seams;
}
inline std::shared_ptr<Seams> on_configuration(std::function<void(nsa::Config&)> change) {
  auto seams = std::make_shared<Seams>();
  seams->configuration.push_back(std::move(change));
  return seams;
}

// The window reads the value of the token after each key.
inline std::shared_ptr<Seams> leaking_window() {
  auto seams = std::make_shared<Seams>();
  seams->ops.push_back([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::AttendWindowArgs shifted = args;
      shifted.v = at::roll(args.v, -1, 1);
      return inner(shifted);
    });
    return ops;
  });
  return seams;
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
