#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "suites/codes.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace suites {
namespace {

using Change = tests::OpsChange;
using tests::Codes;

std::vector<tests::RunCase> run(const tests::Planted& planted, const std::string& filter) {
  static const harness::Settings settings = tests::default_settings();
  return tests::run_suite(autograd(Subject(tests::plant(planted))), settings, filter);
}

const tests::RecordingContext& only(const std::vector<tests::RunCase>& cases) {
  EXPECT_EQ(cases.size(), 1U);
  EXPECT_EQ(cases.at(0).exception, "");
  return cases.at(0).context;
}

template <typename Args>
void write_into_keys(const Args& args) {
  const at::NoGradGuard no_grad;
  args.k.as_strided({1}, {1}, args.k.storage_offset()).mul_(1.0);
}

TEST(Autograd, IsSilentOnTheProduct) { tests::expect_silent(run({}, "")); }

TEST(Autograd, NamesCompressedKeysThatAreDetached) {
  const Change detach = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_compressed, [inner = ops.attend_compressed](const nsa::AttendCompressedArgs& args) {
      nsa::AttendCompressedArgs cut = args;
      cut.kv.k = args.kv.k.detach();
      return inner(cut);
    });
    return ops;
  };
  const auto cases = run({detach, {}}, "parameter_gradients");
  const auto& context = only(cases);
  ASSERT_EQ(context.grave_codes(), Codes{std::string(codes::kCompressedKeysDetached)});
  EXPECT_EQ(context.findings[0].evidence["parameters"].size(), 3U);
  const auto per_op = run({detach, {}}, "gradcheck[backend=sdpa,op=attend_compressed]");
  EXPECT_EQ(only(per_op).grave_codes(), Codes{std::string(codes::kGraphBreak)});
  EXPECT_EQ(only(per_op).findings[0].evidence["input"], "k_cmp");
}

TEST(Autograd, FindsAShortTextThatLeavesTheGraph) {
  const Change fresh = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_compressed, [inner = ops.attend_compressed](const nsa::AttendCompressedArgs& args) {
      nsa::Attended result = inner(args);
      if (args.kv.k.size(1) == 0) result.o = at::zeros_like(result.o, result.o.options().requires_grad(false));
      return result;
    });
    return ops;
  };
  const auto cases = run({fresh, {}}, "gradcheck[backend=sdpa,op=attend_compressed]");
  EXPECT_EQ(only(cases).grave_codes(), Codes{std::string(codes::kGraphBreak)});
  EXPECT_EQ(only(cases).findings[0].evidence["S"], 3);
}

TEST(Autograd, SaysThatOnlyTheGatesFirstLayerIsSilent) {
  const auto zero_fc2 = [](nsa::LanguageModelImpl& model) {
    const at::NoGradGuard no_grad;
    for (auto& parameter : model.named_parameters()) {
      if (parameter.key().find("gate.fc2.weight") != std::string::npos) parameter.value().zero_();
    }
  };
  const auto cases = run({{}, zero_fc2}, "parameter_gradients");
  const auto& context = only(cases);
  ASSERT_EQ(context.grave_codes(), Codes{std::string(codes::kNoGradient)});
  EXPECT_NE(context.findings[0].message.find("fc1"), std::string::npos);
}

TEST(Autograd, NamesAWriteIntoWhatAutogradSaved) {
  const Change write = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::Attended out = inner(args);
      write_into_keys(args);
      return out;
    });
    return ops;
  };
  const auto cases = run({write, {}}, "graph");
  const auto& context = only(cases);
  ASSERT_EQ(context.grave_codes(), Codes{std::string(codes::kInplaceWrite)});
  const harness::Json& written = context.findings[0].evidence["written"];
  ASSERT_FALSE(written.empty());
  EXPECT_EQ(written[0]["op"], "attend_window");
  EXPECT_EQ(written[0]["tensor"], "input k");
  // The reader of any report is told where before he is told what autograd said of it.
  EXPECT_EQ(context.findings[0].message.find("layer 0, attend_window, input k: written in place by the op itself"), 0U)
      << context.findings[0].message;
  EXPECT_EQ(context.findings[0].evidence["layer"], 0);
  EXPECT_EQ(context.findings[0].evidence["op"], "attend_window");
}

TEST(Autograd, SeesAWriteThatAutogradDoesNotNotice) {
  const Change write = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::AttendWindowArgs copy = args;
      copy.k = args.k.clone();
      nsa::Attended out = inner(copy);
      write_into_keys(args);  // nobody saved args.k itself
      return out;
    });
    return ops;
  };
  const auto cases = run({write, {}}, "graph");
  EXPECT_TRUE(only(cases).grave_codes().contains(std::string(codes::kInplaceWrite)));
}

TEST(Autograd, SeesAnOutputWithoutAGraph) {
  const Change cut = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_selected, [inner = ops.attend_selected](const nsa::AttendSelectedArgs& args) {
      nsa::Attended out = inner(args);
      out.o = out.o.detach();
      return out;
    });
    return ops;
  };
  const auto cases = run({cut, {}}, "graph");
  ASSERT_EQ(only(cases).grave_codes(), Codes{std::string(codes::kGraphBreak)});
  EXPECT_EQ(only(cases).findings[0].evidence["outputs"][0]["op"], "attend_selected");
}

TEST(Autograd, CatchesAWrongDerivative) {
  const Change wrong = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::combine, [inner = ops.combine](const nsa::CombineArgs& args) {
      const at::Tensor o = inner(args);
      return o.detach() + (o - o.detach()) * 1.001;  // same value, a gradient that is 0.1 % too large
    });
    return ops;
  };
  const auto cases = run({wrong, {}}, "gradcheck[backend=sdpa,op=combine]");
  EXPECT_EQ(only(cases).grave_codes(), Codes{std::string(codes::kGradcheck)});
}

TEST(Autograd, ReportsABackwardNanWithBothWitnesses) {
  const Change poison = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::Attended out = inner(args);
      const at::Tensor nought = out.o * 0.0;
      out.o = out.o + at::sqrt(nought * nought) * 0.0;
      return out;
    });
    return ops;
  };
  const auto cases = run({poison, {}}, "anomaly_mode");
  const auto& context = only(cases);
  ASSERT_EQ(context.grave_codes(), Codes{std::string(codes::kNonFiniteBackward)});
  EXPECT_NE(context.findings[0].message.find("anomaly mode"), std::string::npos);
  EXPECT_EQ(context.findings[0].evidence["autograd_node"], "SqrtBackward0");
}

}  // namespace
}  // namespace suites
