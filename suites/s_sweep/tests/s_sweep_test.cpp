#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "suites/codes.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace suites {
namespace s_sweep_test {

using Change = tests::OpsChange;

const harness::Settings& test_settings() {
  static const harness::Settings settings = [] {
    harness::Settings s = tests::default_settings(s_sweep);
    s.set("s_sweep.watch_rounds", "2", "test");
    return s;
  }();
  return settings;
}

std::vector<tests::RunCase> run(const Change& change, const std::string& filter,
                                harness::Level level = harness::Level::smoke) {
  return tests::run_suite(s_sweep(Subject(tests::on_ops(change))), test_settings(), filter, level);
}
std::vector<tests::RunCase> run_standard(const Change& change, const std::string& filter) {
  return run(change, filter, harness::Level::standard);
}

at::Tensor poison(const at::Tensor& t, std::int64_t begin, std::int64_t end) {
  const at::Tensor row = at::arange(t.size(1), at::TensorOptions(at::kLong));
  const at::Tensor bad = row.ge(begin).logical_and(row.lt(end)).view({1, -1, 1, 1});
  return at::where(bad, at::full({}, std::numeric_limits<double>::quiet_NaN(), t.options()), t);
}

nsa::Ops empty_rows_are_nan(nsa::Ops ops, const nsa::Call&) {
  ops.replace(&nsa::Ops::attend_compressed, [inner = ops.attend_compressed](const nsa::AttendCompressedArgs& args) {
    nsa::Attended out = inner(args);
    out.o = poison(out.o, 0, args.geometry.l - 1);
    return out;
  });
  return ops;
}

nsa::Ops boundary_is_nan(nsa::Ops ops, const nsa::Call&) {
  ops.replace(&nsa::Ops::attend_selected, [inner = ops.attend_selected](const nsa::AttendSelectedArgs& args) {
    nsa::Attended out = inner(args);
    const std::int64_t S = args.q.size(1);
    if (S % 768 == 512) out.o = poison(out.o, S - 1, S);
    return out;
  });
  return ops;
}

TEST(SSweep, PlansOneCaseForEachLengthAndScale) {
  const harness::Settings& settings = test_settings();
  std::set<std::string> ids;
  for (const harness::Case& c : s_sweep(Subject(std::make_shared<Seams>())).cases(settings)) {
    EXPECT_TRUE(ids.insert(harness::case_id("s_sweep", c)).second);
  }
  for (const char* id :
       {"s_sweep/length[S=128]", "s_sweep/length[S=512]", "s_sweep/length[S=1024]", "s_sweep/length[S=2048]",
        "s_sweep/length[S=1]", "s_sweep/length[S=17]", "s_sweep/length_pattern", "s_sweep/logits[S=67,scale=10000]"}) {
    EXPECT_TRUE(ids.contains(id)) << id;
  }
}

TEST(SSweep, IsSilentOnTheProduct) {
  for (const auto& c : run(nullptr, "")) {
    EXPECT_EQ(c.exception, "") << c.id;
    EXPECT_TRUE(c.context.grave_codes().empty()) << c.id << ": " << c.context.findings.front().message;
    EXPECT_GT(c.context.checks, 0) << c.id;
  }
}

TEST(SSweep, NamesEmptyRows) {
  const auto cases = run(empty_rows_are_nan, "length[S=65]");
  ASSERT_EQ(cases.size(), 1U);
  ASSERT_EQ(cases[0].context.findings.size(), 1U);
  const auto& found = cases[0].context.findings[0];
  EXPECT_EQ(found.code, codes::kEmptyRowNan);
  EXPECT_EQ(found.evidence["layer"], 0);
  EXPECT_EQ(found.evidence["branch"], "cmp");
  EXPECT_EQ(found.evidence["row"], 0);
  EXPECT_EQ(found.evidence["allowed_keys"], 0);
  EXPECT_EQ(found.evidence["bad_rows"], 7);
  EXPECT_NE(found.message.find("layers.0.attention.cmp.o"), std::string::npos) << found.message;
}

TEST(SSweep, EmptyRowsAtEveryLengthAreNoPattern) {
  const auto cases = run(empty_rows_are_nan, "length_pattern");
  ASSERT_EQ(cases.size(), 1U);
  EXPECT_EQ(cases[0].context.grave_codes(), std::set<std::string>{std::string(codes::kEmptyRowNan)});
}

TEST(SSweep, NamesTheLengthsThatAreBad) {
  const auto cases = run(boundary_is_nan, "length_pattern");
  ASSERT_EQ(cases.size(), 1U);
  ASSERT_EQ(cases[0].context.findings.size(), 1U);
  const auto& found = cases[0].context.findings[0];
  EXPECT_EQ(found.code, codes::kLengthPattern);
  EXPECT_EQ(found.evidence["bad"], (std::vector<std::int64_t>{512, 1280, 2048}));
  EXPECT_EQ(found.evidence["rule"]["modulus"], 768);
  EXPECT_EQ(found.evidence["rule"]["remainder"], 512);
  EXPECT_EQ(found.evidence["bad_remainders"].size(), 3U);
}

TEST(SSweep, LocatesTheBoundaryRowAtABadLengthAndPassesAGoodOne) {
  const auto bad = run(boundary_is_nan, "length[S=512]");
  ASSERT_EQ(bad.size(), 1U);
  ASSERT_EQ(bad[0].context.findings.size(), 1U);
  EXPECT_EQ(bad[0].context.findings[0].code, codes::kNonFiniteForward);
  EXPECT_EQ(bad[0].context.findings[0].evidence["branch"], "sel");
  EXPECT_EQ(bad[0].context.findings[0].evidence["row"], 511);
  const auto good = run(boundary_is_nan, "length[S=128]");
  ASSERT_EQ(good.size(), 1U);
  EXPECT_TRUE(good[0].context.findings.empty());
}

TEST(SSweep, TellsAnInPlaceWriteFromACrash) {
  const auto cases = run(
      [](nsa::Ops ops, const nsa::Call&) {
        ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
          nsa::Attended out = inner(args);
          const at::NoGradGuard no_grad;
          args.k.as_strided({1}, {1}, args.k.storage_offset()).mul_(1.0);
          return out;
        });
        return ops;
      },
      "length[S=33]");
  ASSERT_EQ(cases.size(), 1U);
  EXPECT_EQ(cases[0].exception, "");
  EXPECT_EQ(cases[0].context.grave_codes(), std::set<std::string>{std::string(codes::kInplaceWrite)});
}

// A backward pass that autograd refuses hides nothing of the forward pass.
TEST(SSweep, AnInPlaceWriteHidesNoNan) {
  const auto cases = run(
      [](nsa::Ops ops, const nsa::Call& call) {
        ops = boundary_is_nan(std::move(ops), call);
        ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
          nsa::Attended out = inner(args);
          const at::NoGradGuard no_grad;
          args.k.as_strided({1}, {1}, args.k.storage_offset()).mul_(1.0);
          return out;
        });
        return ops;
      },
      "length[S=512]");
  ASSERT_EQ(cases.size(), 1U);
  EXPECT_EQ(cases[0].context.grave_codes(),
            (std::set<std::string>{std::string(codes::kInplaceWrite), std::string(codes::kNonFiniteForward)}));
}

// Some of a model's steps have other gradients: it is called observed, unobserved and, if these differ, three times
// observed, unobserved, unobserved: steps 3 to 5, 6 to 8, 9 to 11.
Change other_gradients(const std::set<int>& steps, bool also_in_a_fixed_order = true) {
  return [=, calls = std::make_shared<int>(0)](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [=, inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      constexpr int kLayers = 3;
      nsa::Attended out = inner(args);
      const bool other = steps.contains(1 + (*calls)++ / kLayers);
      if (other && out.o.requires_grad() && (also_in_a_fixed_order || !at::globalContext().deterministicAlgorithms()))
        out.o.register_hook([](const at::Tensor& gradient) { return gradient * 1.1; });
      return out;
    });
    return ops;
  };
}

TEST(SSweep, TellsAStepThatIsAnotherWhenNobodyObserves) {
  const auto cases = run(other_gradients({2, 4, 5, 7, 8, 10, 11}), "length[S=17]");
  ASSERT_EQ(cases.size(), 1U);
  ASSERT_EQ(cases[0].context.findings.size(), 1U);
  EXPECT_EQ(cases[0].context.findings[0].code, codes::kIdentity);
  EXPECT_EQ(cases[0].context.findings[0].evidence["differs_from_itself_by"], 0);
}

// Neither what a fixed order mends, nor a step that differs from itself as much, nor one that differs only sometimes.
TEST(SSweep, AnotherOrderOfSumsIsNoOtherStep) {
  for (const Change& change : {other_gradients({2, 4, 5, 7, 8, 10, 11}, false), other_gradients({2, 4, 7, 10}),
                               other_gradients({2, 4, 5, 7, 8})}) {
    const auto cases = run(change, "length[S=17]");
    ASSERT_EQ(cases.size(), 1U);
    EXPECT_EQ(cases[0].exception, "");
    EXPECT_TRUE(cases[0].context.findings.empty()) << cases[0].context.findings.front().message;
  }
}

TEST(SSweep, PlansTheStandardLevel) {
  std::map<std::string, bool> needs_cuda;
  for (const harness::Case& c : s_sweep(Subject(std::make_shared<Seams>())).cases(test_settings())) {
    if (c.level == harness::Level::standard) needs_cuda[harness::case_id("s_sweep", c)] = c.needs_cuda;
  }
  const std::map<std::string, bool> wanted = {{"s_sweep/ops[backend=sdpa,op=attend_window]", false},
                                              {"s_sweep/ops[backend=sdpa_masked,op=attend_selected]", false},
                                              {"s_sweep/ops[backend=reference,op=compress_mlp]", false},
                                              {"s_sweep/ops[backend=flash_varlen,op=attend_compressed]", true},
                                              {"s_sweep/model[way=reference]", false},
                                              {"s_sweep/model[way=flash]", true},
                                              {"s_sweep/ops[backend=cuda,op=select]", true},
                                              {"s_sweep/model[way=cuda]", true},
                                              {"s_sweep/long[S=4096,way=default]", false},
                                              {"s_sweep/long[S=65536,way=default]", true},
                                              {"s_sweep/long[S=4096,way=flash]", true},
                                              {"s_sweep/watch_overhead", false},
                                              {"s_sweep/coverage", false}};
  for (const auto& [id, cuda] : wanted) {
    ASSERT_TRUE(needs_cuda.contains(id)) << id;
    EXPECT_EQ(needs_cuda[id], cuda) << id;
  }
}

TEST(SSweep, StandardIsSilentOnTheProduct) {
  for (const char* filter : {"ops[backend=sdpa,op=attend_window]", "ops[backend=sdpa_packed",
                             "ops[backend=sdpa,op=select]", "watch_overhead", "coverage"}) {
    const auto cases = run_standard(nullptr, filter);
    ASSERT_EQ(cases.size(), 1U) << filter;
    EXPECT_EQ(cases[0].exception, "") << filter;
    EXPECT_TRUE(cases[0].context.findings.empty()) << filter << ": " << cases[0].context.findings.front().message;
    EXPECT_GT(cases[0].context.checks, 0) << filter;
  }
}

TEST(SSweep, MeasuresTheWatch) {
  const auto cases = run_standard(nullptr, "watch_overhead");
  ASSERT_EQ(cases.size(), 1U);
  for (const char* metric :
       {"step_plain_ms", "step_watched_ms", "watched_overhead_percent", "counted_overhead_percent"}) {
    EXPECT_TRUE(cases[0].context.metrics.contains(metric)) << metric;
  }
  EXPECT_EQ(cases[0].context.facts["watched"]["rounds"], 2);
  EXPECT_FALSE(cases[0].context.facts["headroom"].empty());
}

TEST(SSweep, TheWatchReportsFromATrainingStep) {
  const auto cases = run_standard(
      [](nsa::Ops ops, const nsa::Call&) {
        ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
          nsa::Attended out = inner(args);
          out.o = poison(out.o, 5, 6);
          return out;
        });
        return ops;
      },
      "watch_overhead");
  ASSERT_EQ(cases.size(), 1U);
  ASSERT_EQ(cases[0].context.findings.size(), 1U);
  EXPECT_EQ(cases[0].context.findings[0].code, codes::kNonFiniteForward);
  EXPECT_EQ(cases[0].context.findings[0].evidence["stage"], "layers.0.attention.win.o");
  EXPECT_EQ(cases[0].context.findings[0].evidence["row"], 5);
}

TEST(SSweep, TellsWhatFailingModelPointsHaveInCommon) {
  const auto cases = run_standard(
      [](nsa::Ops ops, const nsa::Call& call) {
        if (!call.packed) return ops;
        ops.replace(&nsa::Ops::attend_selected, [inner = ops.attend_selected](const nsa::AttendSelectedArgs& args) {
          nsa::Attended out = inner(args);
          out.o = poison(out.o, 5, 6);
          return out;
        });
        return ops;
      },
      "model[way=sdpa_masked]");
  ASSERT_EQ(cases.size(), 1U);
  const auto& findings = cases[0].context.findings;
  ASSERT_EQ(findings.size(), 4U);  // three points, and what all have in common
  EXPECT_EQ(findings[0].code, codes::kNonFiniteForward);
  EXPECT_EQ(findings[0].evidence["branch"], "sel");
  EXPECT_EQ(findings[0].evidence["row"], 5);
  EXPECT_EQ(findings.back().code, codes::kSweepPattern);
  EXPECT_NE(findings.back().message.find("exactly those with layout=packed"), std::string::npos)
      << findings.back().message;
}

}  // namespace s_sweep_test
}  // namespace suites
