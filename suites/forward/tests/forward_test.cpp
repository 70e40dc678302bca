#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>

#include "suites/codes.hpp"
#include "suites/forward/checks.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace {

using namespace suites;
using tests::Codes;
std::string code(std::string_view c) { return std::string(c); }

struct Outcome {
  Codes codes;
  std::vector<tests::RecordingContext::Found> findings;
  int checks = 0, cases = 0;
};

Outcome run(const std::shared_ptr<Seams>& seams, const std::string& filter = "") {
  const harness::Settings settings = tests::default_settings();
  Outcome outcome;
  for (const auto& ran : tests::run_suite(forward(Subject(seams)), settings, filter)) {
    EXPECT_EQ(ran.exception, "") << ran.id;
    EXPECT_FALSE(ran.skipped) << ran.id;
    ++outcome.cases;
    outcome.checks += ran.context.checks;
    outcome.codes.merge(ran.context.grave_codes());
    outcome.findings.insert(outcome.findings.end(), ran.context.findings.begin(), ran.context.findings.end());
  }
  return outcome;
}

TEST(Forward, CleanModelIsSilent) {
  const Outcome outcome = run(std::make_shared<Seams>());
  EXPECT_EQ(outcome.codes, Codes{}) << (outcome.findings.empty() ? "" : outcome.findings[0].message);
  EXPECT_EQ(outcome.cases, 9);
  EXPECT_GE(outcome.checks, 7 * 4);
}

TEST(Forward, UnfilledCuSeqlensAreNamed) {
  const Outcome outcome = run(tests::on_ops([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::AttendWindowArgs unfilled = args;
      if (args.cu_seqlens) unfilled.cu_seqlens = at::full_like(*args.cu_seqlens, 0x7f7f7f7f);
      return inner(unfilled);
    });
    return ops;
  }));
  ASSERT_EQ(outcome.codes, Codes{code(codes::kCuSeqlens)});
  EXPECT_NE(outcome.findings[0].message.find("2139062143"), std::string::npos) << outcome.findings[0].message;
  EXPECT_EQ(outcome.findings[0].evidence["passed_to_the_model"].size(), 9U);
}

TEST(Forward, NanIsFoundWithItsRow) {
  const Outcome outcome = run(tests::on_ops([](nsa::Ops ops, const nsa::Call&) {
                                ops.replace(&nsa::Ops::combine, [inner = ops.combine](const nsa::CombineArgs& args) {
                                  at::Tensor o = inner(args).clone();
                                  o.select(1, 5).fill_(std::nan(""));
                                  return o;
                                });
                                return ops;
                              }),
                              "layers=1]");  // one layer: a second one would carry it to every row
  ASSERT_TRUE(outcome.codes.contains(code(codes::kNonFiniteForward)));
  EXPECT_EQ(outcome.findings[0].evidence["first"]["token"], 5);
}

TEST(Forward, WrongScaleOfTheLogitsShowsInTheInitialLoss) {
  const auto seams = std::make_shared<Seams>();
  seams->model.push_back([](nsa::LanguageModelImpl& model) {
    const at::NoGradGuard no_grad;
    model.head->weight.mul_(3);
  });
  EXPECT_EQ(run(seams, "first").codes, Codes{code(codes::kInitialLoss)});
}

TEST(Forward, JudgementsOfLogits) {
  const harness::Settings settings = tests::default_settings();
  forward_checks::Setup setup;
  setup.model.vocab = 7;
  const auto judged = [&](const at::Tensor& logits) {
    tests::RecordingContext context(settings);
    forward_checks::judge_logits(context, setup, {2, 3}, logits);
    return context.grave_codes();
  };
  EXPECT_EQ(judged(at::zeros({2, 3, 7})), Codes{});
  EXPECT_EQ(judged(at::zeros({2, 4, 7})), Codes{code(codes::kOutputContract)});
  EXPECT_EQ(judged(at::zeros({2, 3, 7}, at::kDouble)), Codes{code(codes::kOutputContract)});
  at::Tensor infinite = at::zeros({2, 3, 7});
  infinite[1][2][3] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(judged(infinite), Codes{code(codes::kNonFiniteForward)});
}

TEST(Forward, InitialLossOutOfRangeAndNan) {
  const harness::Settings settings = tests::default_settings();
  const double expected = std::log(256.0) + 1.0 / 6;
  for (const auto& [loss, good] : std::vector<std::pair<double, bool>>{
           {expected, true}, {expected + 0.29, true}, {expected + 0.31, false}, {3.72, false}, {std::nan(""), false}}) {
    tests::RecordingContext context(settings);
    forward_checks::judge_initial_loss(context, {}, loss);
    EXPECT_EQ(context.findings.empty(), good) << loss;
  }
}

}  // namespace
