#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "suites/codes.hpp"
#include "suites/faults/attend.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace suites {
namespace parity_test {

using Change = tests::OpsChange;

std::vector<tests::RunCase> run(const Change& change, const std::string& filter) {
  static const harness::Settings settings = tests::default_settings(parity);
  return tests::run_suite(parity(Subject(tests::on_ops(change))), settings, filter);
}

// The grave codes of all cases that match.
tests::Codes found(const Change& change, const std::string& filter) { return tests::grave_codes(run(change, filter)); }

template <typename Wrap>
Change on_window(Wrap wrap) {
  return [wrap](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window,
                [wrap, inner = ops.attend_window](const nsa::AttendWindowArgs& args) { return wrap(inner, args); });
    return ops;
  };
}

nsa::Ops leak(nsa::Ops ops, const nsa::Call&) {
  ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
    nsa::AttendWindowArgs shifted = args;
    shifted.v = at::roll(args.v, -1, 1);
    return inner(shifted);
  });
  return ops;
}

bool holds(const std::set<std::string>& all, std::string_view code) { return all.contains(std::string(code)); }

TEST(Parity, IsSilentOnTheProduct) { tests::expect_silent(run(nullptr, "")); }

// What a kernel of all branches may do wrong: by 2 %, in one head, in one gradient, at one length. Of the faults those
// that strike at lengths which run without a GPU.
TEST(Parity, AFaultOfAttentionAsAWholeIsFoundAtItsLength) {
  int planted = 0;
  for (const harness::Fault& fault : attend_faults(std::make_shared<Seams>())) {
    const std::size_t at = fault.name.rfind("-at-");
    const std::string S = at == std::string::npos ? "128" : fault.name.substr(at + 4);
    if (S == "2048" || fault.name.starts_with("captured-")) continue;  // found on a GPU
    const auto seams = std::make_shared<Seams>();
    for (const harness::Fault& own : attend_faults(seams))
      if (own.name == fault.name) own.plant({});
    const auto cases =
        tests::run_suite(parity(Subject(seams)), tests::default_settings(parity), "attention[S=" + S + "]");
    ASSERT_EQ(cases.size(), 1U) << S;
    EXPECT_EQ(cases[0].exception, "") << fault.name;
    const auto codes = cases[0].context.grave_codes();
    EXPECT_TRUE(holds(codes, codes::kOutputBudget) || holds(codes, codes::kGradientBudget)) << fault.name;
    ++planted;
  }
  EXPECT_GE(planted, 12);
}

TEST(Parity, NamesBranchAndFirstRowOfALeak) {
  const auto by_op = run(leak, "causality[backend=sdpa,dtype=fp32,op=attend_window]");
  ASSERT_EQ(by_op.size(), 1U);
  ASSERT_EQ(by_op[0].context.findings.size(), 1U);
  EXPECT_EQ(by_op[0].context.findings[0].code, codes::kFutureLeak);
  EXPECT_EQ(by_op[0].context.findings[0].evidence["branch"], "win");
  EXPECT_EQ(by_op[0].context.findings[0].evidence["row"],
            by_op[0].context.findings[0].evidence["tokens_changed_after"]);
  const auto by_model = run(leak, "model_causality");
  ASSERT_EQ(by_model.size(), 1U);
  ASSERT_EQ(by_model[0].context.findings.size(), 1U);
  EXPECT_EQ(by_model[0].context.findings[0].code, codes::kFutureLeak);
  EXPECT_EQ(by_model[0].context.findings[0].evidence["branch"], "win");
  EXPECT_EQ(by_model[0].context.findings[0].evidence["layer"], 0);
}

TEST(Parity, TakesNanRowsForNoLeakAndTheFirstStageForTheCause) {
  const Change nan = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_compressed, [inner = ops.attend_compressed](const nsa::AttendCompressedArgs& args) {
      nsa::Attended out = inner(args);
      out.o = out.o.clone();
      out.o.slice(1, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
      return out;
    });
    return ops;
  };
  EXPECT_TRUE(found(nan, "model_causality").empty());
  const auto steps = run(nan, "whole_step[S=2w+lsel+3,model=subject,precision=fp32]");
  ASSERT_EQ(steps.size(), 1U);
  ASSERT_EQ(steps[0].context.findings.size(), 1U);
  EXPECT_EQ(steps[0].context.findings[0].code, codes::kOutputBudget);
  EXPECT_EQ(steps[0].context.findings[0].evidence["stage"], "layers.0.attention.cmp.o");
  EXPECT_EQ(steps[0].context.findings[0].evidence["row"], 0);
}

TEST(Parity, CatchesAWindowThatIsOneTokenTooWide) {
  const Change wide = on_window([](const auto& inner, nsa::AttendWindowArgs args) {
    ++args.geometry.w;
    return inner(args);
  });
  EXPECT_TRUE(holds(found(wide, "op[backend=sdpa,dtype=fp32,op=attend_window]"), codes::kOutputBudget));
  EXPECT_TRUE(holds(found(wide, "identity[name=window_width]"), codes::kIdentity));
}

TEST(Parity, CatchesAMaskThatIsALargeNumber) {
  const Change finite = on_window([](const auto&, const nsa::AttendWindowArgs& args) {
    const std::int64_t S = args.q.size(1), h = args.q.size(2) / args.k.size(2);
    const at::Tensor t = at::arange(S), behind = t.unsqueeze(1) - t.unsqueeze(0);
    const at::Tensor hidden = behind.lt(0).logical_or(behind.ge(args.geometry.w));
    const auto heads_first = [&](const at::Tensor& x) { return x.repeat_interleave(h, 2).transpose(1, 2); };
    const at::Tensor scores = at::matmul(args.q.transpose(1, 2), heads_first(args.k).transpose(2, 3)) /
                              std::sqrt(static_cast<double>(args.q.size(3)));
    const at::Tensor p = at::softmax(scores.masked_fill(hidden, -1e4), -1);
    return nsa::Attended{at::matmul(p, heads_first(args.v)).transpose(1, 2), {}};
  });
  EXPECT_EQ(found(finite, "op[backend=sdpa,dtype=fp32,op=attend_window]"),
            std::set<std::string>{std::string(codes::kOutputBudget)});
}

TEST(Parity, CatchesAnOutputOfAnotherType) {
  const Change wide = on_window([](const auto& inner, const nsa::AttendWindowArgs& args) {
    nsa::Attended out = inner(args);
    out.o = out.o.to(at::kDouble);
    return out;
  });
  EXPECT_EQ(found(wide, "op[backend=sdpa,dtype=fp32,op=attend_window]"),
            std::set<std::string>{std::string(codes::kOutputContract)});
}

TEST(Parity, CatchesAGradientThatIsOff) {
  const Change wrong = on_window([](const auto& inner, const nsa::AttendWindowArgs& args) {
    nsa::Attended out = inner(args);
    out.o = out.o.detach() + (out.o - out.o.detach()) * 1.01;
    return out;
  });
  EXPECT_EQ(found(wrong, "op[backend=sdpa,dtype=fp32,op=attend_window]"),
            std::set<std::string>{std::string(codes::kGradientBudget)});
}

TEST(Parity, TellsAnInPlaceWriteFromACrash) {
  const Change write = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::combine, [inner = ops.combine](const nsa::CombineArgs& args) {
      const at::Tensor o = inner(args);
      const at::NoGradGuard no_grad;
      args.o_cmp.as_strided({1}, {1}, args.o_cmp.storage_offset()).mul_(1.0);  // saved for the gates' gradient
      return o;
    });
    return ops;
  };
  EXPECT_EQ(found(write, "op[backend=sdpa,dtype=fp32,op=combine]"),
            std::set<std::string>{std::string(codes::kInplaceWrite)});
}

Change hide_in_window() {
  return on_window([](const auto& inner, const nsa::AttendWindowArgs& args) {
    nsa::Attended out = inner(args);
    out.o = at::nan_to_num(out.o);
    return out;
  });
}

TEST(Parity, CatchesAHiddenNan) {
  EXPECT_TRUE(
      holds(found(hide_in_window(), "nan_visible[backend=sdpa,dtype=fp32,op=attend_window]"), codes::kNonFiniteMask));
}

// The output of a window of one key is that key's value: a NaN in q or k has nowhere to show, one in v has.
TEST(Parity, AWindowOfOneKeyHidesNoNan) {
  harness::Settings settings = tests::default_settings(parity);
  settings.set("nsa.w", "1", "a test");
  const auto codes_with = [&](const Change& change) {
    const auto cases = tests::run_suite(parity(Subject(tests::on_ops(change))), settings,
                                        "nan_visible[backend=sdpa,dtype=fp32,op=attend_window]");
    EXPECT_EQ(cases.size(), 1U);
    return tests::grave_codes(cases);
  };
  EXPECT_TRUE(codes_with(nullptr).empty());
  EXPECT_TRUE(holds(codes_with(hide_in_window()), codes::kNonFiniteMask)) << "in v";
}

// The row that is looked at first sees one key alone there, and depends on no query.
TEST(Parity, ANanIsLookedForWhereSomethingDependsOnIt) {
  harness::Settings settings = tests::default_settings(parity);
  settings.set("nsa.w", "24", "a test");
  const auto cases = tests::run_suite(parity(Subject(std::make_shared<Seams>())), settings,
                                      "nan_visible[backend=sdpa,dtype=fp32,op=attend_selected]");
  ASSERT_EQ(cases.size(), 1U);
  EXPECT_TRUE(tests::grave_codes(cases).empty());
}

TEST(Parity, CatchesAForcedBlockThatIsLost) {
  const Change lose = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::select, [inner = ops.select](const nsa::SelectArgs& args) {
      at::Tensor blocks = inner(args).clone();
      blocks.select(3, 0).masked_fill_(blocks.select(3, 1).gt(1), 1);
      return blocks;
    });
    return ops;
  };
  EXPECT_TRUE(holds(found(lose, "op[backend=sdpa,dtype=fp32,op=select]"), codes::kSelectionDiffers));
}

TEST(Parity, CatchesAPackedBatchThatForgetsItsBoundaries) {
  const Change forget = on_window([](const auto& inner, nsa::AttendWindowArgs args) {
    args.cu_seqlens = {};
    return inner(args);
  });
  EXPECT_TRUE(holds(found(forget, "packed[backend=sdpa,dtype=fp64,op=attend_window]"), codes::kPackedDiffers));
  EXPECT_TRUE(holds(found(forget, "model_packed"), codes::kPackedDiffers));
}

// By the number of documents and tokens, not by where they end.
TEST(Parity, CatchesPackedTablesThatAreRememberedBySize) {
  const Change remember = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](nsa::AttendWindowArgs args) {
      static std::map<std::pair<std::int64_t, std::int64_t>, at::Tensor> by_size;
      if (args.cu_seqlens)
        args.cu_seqlens =
            by_size.try_emplace({args.cu_seqlens->numel(), args.q.size(1)}, *args.cu_seqlens).first->second;
      return inner(args);
    });
    return ops;
  };
  const auto cases = run(remember, "packed[backend=sdpa,dtype=fp64,op=attend_window]");
  ASSERT_EQ(cases.size(), 1U);
  EXPECT_TRUE(tests::finding(cases.front().context, codes::kPackedDiffers).evidence.contains("before"));
}

// From the second model on another function, or another gradient alone.
TEST(Parity, CatchesAModelThatComputesSomethingElseWhenWatched) {
  constexpr int kLayers = 3;
  const auto later = [](auto&& change) {
    return [change, calls = std::make_shared<int>(0)](const auto& inner, nsa::AttendWindowArgs args) {
      return (*calls)++ < kLayers ? inner(args) : change(inner, args);
    };
  };
  const Change forward = on_window(later([](const auto& inner, nsa::AttendWindowArgs args) {
    ++args.geometry.w;
    return inner(args);
  }));
  EXPECT_EQ(found(forward, "model_watched"), std::set<std::string>{std::string(codes::kIdentity)});
  const Change backward = on_window(later([](const auto& inner, const nsa::AttendWindowArgs& args) {
    const nsa::Attended out = inner(args);
    out.o.register_hook([](const at::Tensor& gradient) { return gradient * 1.01; });
    return out;
  }));
  EXPECT_EQ(found(backward, "model_watched"), std::set<std::string>{std::string(codes::kIdentity)});
}

// A gradient that differs from itself by as much: no fault of who watches.
TEST(Parity, AGradientThatNeverRepeatsIsNotBlamedOnTheWatcher) {
  const Change noisy =
      on_window([calls = std::make_shared<int>(0)](const auto& inner, const nsa::AttendWindowArgs& args) {
        const nsa::Attended out = inner(args);
        if (out.o.requires_grad())
          out.o.register_hook([by = 1 + 1e-3 * ((*calls)++ / 3)](const at::Tensor& gradient) { return gradient * by; });
        return out;
      });
  EXPECT_EQ(found(noisy, "model_watched"), std::set<std::string>{});
}

TEST(Parity, NamesCuSeqlensThatWereNeverFilled) {
  const Change unfilled = on_window([](const auto& inner, nsa::AttendWindowArgs args) {
    if (args.cu_seqlens) args.cu_seqlens = at::full_like(*args.cu_seqlens, 0x7f7f7f7f);
    return inner(args);
  });
  const auto cases = run(unfilled, "packed[backend=sdpa,dtype=fp64,op=attend_window]");
  ASSERT_EQ(cases.size(), 1U);
  EXPECT_EQ(cases[0].exception, "");
  ASSERT_EQ(cases[0].context.findings.size(), 1U);
  EXPECT_EQ(cases[0].context.findings[0].code, codes::kCuSeqlens);
  EXPECT_NE(cases[0].context.findings[0].message.find("2139062143"), std::string::npos);
}

}  // namespace parity_test
}  // namespace suites
