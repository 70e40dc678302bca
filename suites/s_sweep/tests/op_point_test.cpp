#include "suites/s_sweep/op_point.hpp"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "suites/codes.hpp"
#include "suites/probes/unwritten_memory.hpp"
#include "suites/s_sweep/op_run.hpp"

namespace suites::s_sweep_cases {
namespace {

using nsa::Op;
using probes::Diagnosis;
using Change = std::function<nsa::Ops(nsa::Ops, const nsa::Call&)>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
const nsa::Geometry kTiny{.l = 8, .d = 4, .l_sel = 16, .n_sel = 4, .w = 32};

std::optional<Diagnosis> diagnose(const OpPoint& point, const Change& change = nullptr) {
  auto seams = std::make_shared<Seams>();
  if (change) seams->ops.push_back(change);
  return diagnose_op(Subject(seams), point, {at::kCPU, 11});
}

OpPoint point_of(Op op, Content content, Layout layout = Layout::single, at::ScalarType dtype = at::kFloat) {
  OpPoint point{"sdpa", {}};
  point.input.op = op;
  point.input.geometry = kTiny;
  point.input.S = 70;
  point.input.content = content;
  point.input.layout = layout;
  point.input.dtype = dtype;
  return point;
}

at::Tensor put(const at::Tensor& t, std::int64_t row, double value) {
  at::Tensor mask = at::zeros(t.sizes(), at::TensorOptions(at::kBool));
  mask.select(1, row).fill_(true);
  return at::where(mask, at::full({}, value, t.options()), t);
}

// Changes what the window gives.
Change window(const std::function<void(nsa::Attended&, const nsa::AttendWindowArgs&)>& change) {
  return [change](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [change, inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::Attended out = inner(args);
      change(out, args);
      return out;
    });
    return ops;
  };
}

struct Computation {
  std::string way;
  Op op;
};
class Healthy : public testing::TestWithParam<Computation> {};

TEST_P(Healthy, IsSilentOnEveryContentLayoutAndDtype) {
  const auto& [way, op] = GetParam();
  for (const Content content : kContents) {
    if (!suits(content, op)) continue;
    for (const Layout layout : kLayouts) {
      if (content == Content::poison && layout == Layout::single) continue;
      if (op == Op::combine && layout == Layout::packed) continue;
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        OpPoint point = point_of(op, content, layout, dtype);
        point.way = way;
        point.input.S = 17;
        point.input.scale = 120;
        const auto found = diagnose(point);
        EXPECT_FALSE(found.has_value()) << to_string(content) << ' ' << to_string(layout) << ' ' << dtype << ": "
                                        << found->message;
      }
    }
  }
}

std::vector<Computation> computations() {
  std::vector<Computation> all = {{"sdpa_masked", Op::attend_selected}, {"sdpa_packed", Op::attend_selected}};
  for (const Op op : nsa::kAllOps) {
    all.push_back({"sdpa", op});
    all.push_back({"reference", op});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Ways, Healthy, testing::ValuesIn(computations()),
                         [](const auto& c) { return c.param.way + "_" + std::string(nsa::to_string(c.param.op)); });

TEST(DiagnoseOp, LocatesANanInTheForwardPass) {
  const auto found = diagnose(point_of(Op::attend_selected, Content::normal), [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_selected, [inner = ops.attend_selected](const nsa::AttendSelectedArgs& args) {
      nsa::Attended out = inner(args);
      out.o = put(out.o, 37, kNan);
      return out;
    });
    return ops;
  });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->code, codes::kNonFiniteForward);
  EXPECT_EQ(found->evidence["branch"], "sel");
  EXPECT_EQ(found->evidence["row"], 37);
  EXPECT_EQ(found->evidence["stage"], "sel.o");
  EXPECT_EQ(found->evidence["allowed_keys"], 2 * 16 + 6);
}

TEST(DiagnoseOp, LocatesANanOfTheBackwardPassOnly) {
  const auto found = diagnose(point_of(Op::attend_window, Content::normal),
                              window([](nsa::Attended& out, const nsa::AttendWindowArgs&) {
                                const at::Tensor nought = out.o * 0.0;
                                out.o = out.o + at::sqrt(nought * nought) * 0.0;  // 0 * inf behind it
                              }));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->code, codes::kNonFiniteBackward);
  EXPECT_EQ(found->evidence["branch"], "win");
  EXPECT_EQ(found->evidence["autograd_node"], "SqrtBackward0");
}

TEST(DiagnoseOp, NamesEmptyRows) {
  const auto found = diagnose(point_of(Op::attend_compressed, Content::ties, Layout::packed), [](nsa::Ops ops,
                                                                                                 const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_compressed, [inner = ops.attend_compressed](const nsa::AttendCompressedArgs& args) {
      nsa::Attended out = inner(args);
      for (const std::int64_t row : {0, 6, 70}) out.o = put(out.o, row, kNan);
      return out;
    });
    return ops;
  });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->code, codes::kEmptyRowNan);
  EXPECT_EQ(found->evidence["bad_rows"], 3);
  EXPECT_EQ(found->evidence["allowed_keys"], 0);
}

TEST(DiagnoseOp, NamesPaddingThatLeaks) {
  // 0 * NaN: the padding is weighted with 0 instead of being left out.
  const auto leak =
      window([](nsa::Attended& out, const nsa::AttendWindowArgs& args) { out.o = out.o + args.v.sum() * 0.0; });
  for (const Layout layout : {Layout::batch, Layout::packed}) {
    const auto found = diagnose(point_of(Op::attend_window, Content::poison, layout), leak);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->code, codes::kPoisonLeak);
    EXPECT_EQ(found->evidence["tensor"], "o");
    EXPECT_EQ(found->evidence["row"], layout == Layout::packed ? kTiny.l + 1 : 0);  // the first behind the padding
    EXPECT_FALSE(diagnose(point_of(Op::attend_window, Content::normal, layout), leak).has_value());
  }
}

TEST(DiagnoseOp, NamesPaddingThatLeaksInTheBackwardPass) {
  const auto leak = window([](nsa::Attended& out, const nsa::AttendWindowArgs& args) {
    const at::Tensor padding = args.v.detach().sum();
    if (out.o.requires_grad()) {
      args.k.register_hook([padding](const at::Tensor& gradient) { return gradient + padding * 0.0; });
    }
  });
  const auto found = diagnose(point_of(Op::attend_window, Content::poison, Layout::packed), leak);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->code, codes::kPoisonLeak);
  EXPECT_EQ(found->evidence["tensor"], "gradient of k");
}

TEST(DiagnoseOp, SeesAChoiceThatPaddingMoves) {
  const auto point = point_of(Op::select, Content::poison, Layout::batch);
  const auto moved = diagnose(point, [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::select, [inner = ops.select](const nsa::SelectArgs& args) {
      nsa::SelectArgs shifted = args;  // queries that get something of the padding
      if (args.q.isnan().any().item<bool>()) shifted.q = at::nan_to_num(args.q) * -1.0;
      return inner(shifted);
    });
    return ops;
  });
  ASSERT_TRUE(moved.has_value());
  EXPECT_EQ(moved->code, codes::kPoisonLeak);
}

TEST(DiagnoseOp, SeesAChoiceWithoutItsForcedBlocks) {
  const auto found = diagnose(point_of(Op::select, Content::ties, Layout::packed), [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::select, [inner = ops.select](const nsa::SelectArgs& args) {
      at::Tensor blocks = inner(args).clone();
      blocks.select(1, 40).copy_(at::tensor({0, 1, -1, -1}, at::kInt).expand({1, blocks.size(2), 4}));
      return blocks;  // query 40 is in block 2
    });
    return ops;
  });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->code, codes::kSelectionDiffers);
  EXPECT_EQ(found->evidence["row"], 40);
}

TEST(DiagnoseOp, SeesAnOverflowThatIsHidden) {
  const auto clamp = window([](nsa::Attended& out, const nsa::AttendWindowArgs& args) {
    if (out.o.requires_grad()) {
      args.v.register_hook([](const at::Tensor& gradient) { return at::nan_to_num(gradient, 0.0, 0.0, 0.0); });
    }
  });
  const auto found = diagnose(point_of(Op::attend_window, Content::overflow, Layout::single, at::kHalf), clamp);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->code, codes::kOverflowHidden);
  EXPECT_EQ(found->evidence["tensor"], "gradient of v");
}

TEST(DiagnoseOp, SeesScoresThatLeaveFp16) {
  // Scores in the storage type: 65504 is soon passed.
  const auto half_scores = window([](nsa::Attended& out, const nsa::AttendWindowArgs& args) {
    if (args.q.scalar_type() != at::kHalf) return;
    const at::Tensor scores = (args.q * args.q).sum(-1, true).to(at::kHalf);
    out.o = out.o + (scores - scores);  // inf - inf
  });
  OpPoint point = point_of(Op::attend_window, Content::normal, Layout::single, at::kHalf);
  EXPECT_FALSE(diagnose(point, half_scores).has_value());
  point.input.scale = 1e4;
  const auto found = diagnose(point, half_scores);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->code, codes::kNonFiniteForward);
  EXPECT_EQ(found->evidence["backend"], "sdpa");
}

TEST(DiagnoseOp, SeesMemoryThatNobodyHasWritten) {
  const auto unfilled = window([](nsa::Attended& out, const nsa::AttendWindowArgs&) {
    at::Tensor workspace = at::empty_like(out.o);
    workspace.narrow(1, 0, 64).zero_();  // the tail of the last tile is forgotten
    out.o = out.o + at::where(workspace.isnan(), workspace, at::zeros_like(workspace));
  });
  const auto found = diagnose(point_of(Op::attend_window, Content::stale_memory), unfilled);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->code, codes::kUninitialisedRead);
  EXPECT_EQ(found->evidence["row"], 64);
}

TEST(DiagnoseOp, SeesWhatHappensOnce) {
  const auto calls = std::make_shared<int>(0);
  const auto found = diagnose(point_of(Op::attend_window, Content::normal),
                              window([calls](nsa::Attended& out, const nsa::AttendWindowArgs&) {
                                if ((*calls)++ == 0) out.o = put(out.o, 3, kNan);
                              }));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->code, codes::kNonFiniteOnce);
}

TEST(DiagnoseOp, SeesItWhateverMemoryHeldBefore) {
  // The same fault where every fresh piece of memory holds the NaN of earlier work, unless somebody fills it.
  const auto unfilled = window([](nsa::Attended& out, const nsa::AttendWindowArgs&) {
    { at::Tensor earlier = at::full_like(out.o, kNan); }
    const at::Tensor workspace = at::empty_like(out.o);
    out.o = out.o + at::where(workspace.isnan(), workspace, at::zeros_like(workspace));
  });
  for (int i = 0; i < 20; ++i) {
    const auto found = diagnose(point_of(Op::attend_window, Content::stale_memory), unfilled);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->code, codes::kUninitialisedRead);
  }
}

TEST(ZeroMemory, FillsWhatIsAllocatedAndEnds) {
  { at::Tensor earlier = at::full({100}, kNan); }
  {
    const probes::ZeroMemory memory;
    const at::Tensor x = at::empty({100});
    EXPECT_TRUE(x.eq(0).all().item<bool>());
    EXPECT_TRUE(at::empty_like(x, at::kLong).eq(0).all().item<bool>());
    EXPECT_TRUE(x.new_empty({3, 4}).eq(0).all().item<bool>());
    EXPECT_TRUE(at::empty_strided({3, 4}, {8, 1}, at::kBFloat16).eq(0).all().item<bool>());
  }
  EXPECT_FALSE(at::hasCallbacks());
}

TEST(StaleMemory, FillsWhatIsAllocatedAndEnds) {
  {
    const probes::StaleMemory memory;
    EXPECT_TRUE(at::empty({100}).isnan().all().item<bool>());
    EXPECT_TRUE(at::empty({100}, at::kBFloat16).isnan().all().item<bool>());
  }
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

TEST(MakeInput, KeepsWhatItPromises) {
  for (const Content content : kContents) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto options = point_of(Op::attend_window, content, Layout::batch, dtype).input;
      const OpInput input = make_input(options, at::kCPU, 5);
      for (const at::Tensor& x : input.clean.inputs) {
        EXPECT_TRUE(x.isfinite().all().item<bool>()) << to_string(content) << dtype;
        EXPECT_EQ(x.scalar_type(), dtype);
      }
      EXPECT_EQ(input.given[2].isnan().any().item<bool>(), content == Content::poison);
      const double v = input.clean.inputs[2].abs().max().item<double>();
      const double k = input.clean.inputs[1].abs().max().item<double>();
      const double normal = std::ldexp(1.0, dtype == at::kHalf ? -14 : -126);
      EXPECT_EQ(k == 0, content == Content::zero_keys);
      EXPECT_EQ(v > 0 && v < normal, content == Content::denormal);
      EXPECT_EQ(v > (dtype == at::kHalf ? 65503 : 1e35), content == Content::largest_values);
      EXPECT_EQ(k > (dtype == at::kHalf ? 5e4 : 1e17), content == Content::largest_logits);
    }
  }
}

}  // namespace
}  // namespace suites::s_sweep_cases
