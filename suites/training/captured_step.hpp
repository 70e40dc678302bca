// A captured step against the same step made one operation after another, with the seam through which a unit test
// breaks one of the two.
#pragma once

#include <functional>

#include "harness/context.hpp"
#include "suites/subject.hpp"
#include "suites/training/run.hpp"

namespace suites::training_cases {

struct CapturedTrial {
  RunPlan plan;
  std::int64_t replays = 4;  // of the captured run, after its warm-up
  // Called with each model before it is trained: nsa::CudaGraph::on for the one that is captured. For tests.
  std::function<void(nsa::LanguageModelImpl&, nsa::CudaGraph)> disturb = {};
};

// Two runs of the plan with the same seed, data and changing rate, one captured and replayed, one not: losses, norms,
// rates, weights and moments, bit for bit where an ordinary run repeats itself, else within ten times its own spread
// (kCapturedStep). On a CPU, which captures nothing, the same arithmetic is made one operation after another.
void judge_captured_steps(const Subject& subject, const CapturedTrial& trial, harness::Context& context);

// A captured run in which a gradient, and then the loss, is not finite in a replay: each step must be stopped with its
// reason before anything is updated, and the run must go on as an ordinary one does (kGuardMissed, kCapturedStep).
void judge_captured_stops(const Subject& subject, const CapturedTrial& trial, harness::Context& context);

}  // namespace suites::training_cases
