// Our own kernels, emulated on the processor (nsa/kernels/tests/emulation), over every hostile content and layout: what
// the sweep asks of the way `cuda` on a GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "nsa/cuda/cuda.hpp"
#include "nsa/kernels/params.hpp"
#include "suites/s_sweep/op_point.hpp"

namespace suites::s_sweep_cases {
namespace {

using nsa::Op;

constexpr std::int64_t kWidth = 64;

// Several selection blocks in a tile of keys, and one, with many rows that see no compressed block.
struct Problem {
  nsa::Geometry geometry;
  std::int64_t S;
  double scale;
};
const Problem kProblems[] = {{{.l = 8, .d = 4, .l_sel = 16, .n_sel = 4, .w = 32}, 17, 120},
                             {{.l = 32, .d = 16, .l_sel = 64, .n_sel = 3, .w = 50}, 70, 1}};

class EmulatedKernels : public testing::TestWithParam<Op> {};

TEST_P(EmulatedKernels, AreSilentOnEveryContentLayoutAndDtype) {
  ASSERT_TRUE(nsa::kernels::is_emulated()) << "linked with the kernels themselves";
  auto seams = std::make_shared<Seams>();
  seams->ops.push_back([](const nsa::Ops&, const nsa::Call&) { return nsa::cuda::ops(); });
  const Subject subject(seams);
  const Op op = GetParam();
  // A NaN in the document next door may reach the rows of its tile (op_exclusions), of selected attention too:
  // neighbours compute their forced blocks together.
  const bool shares_tiles = op != Op::compress && op != Op::select && op != Op::combine;
  for (const Content content : kContents) {
    if (!suits(content, op)) continue;
    for (const Layout layout : kLayouts) {
      if (content == Content::poison && (layout == Layout::single || (layout == Layout::packed && shares_tiles)))
        continue;
      if (op == Op::combine && layout == Layout::packed) continue;
      for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
        for (const auto& [geometry, S, scale] : kProblems) {
          OpPoint point{"sdpa", {}};  // the way whose table the kernels replace
          point.input = {.op = op,
                         .geometry = geometry,
                         .S = S,
                         .Dk = kWidth,
                         .Dv = kWidth,
                         .dtype = dtype,
                         .scale = scale,
                         .content = content,
                         .layout = layout};
          const auto found = diagnose_op(subject, point, {at::kCPU, 11});
          EXPECT_FALSE(found.has_value())
              << to_string(content) << ' ' << to_string(layout) << ' ' << dtype << " S " << S << ": " << found->message;
        }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, EmulatedKernels, testing::ValuesIn(nsa::kAllOps),
                         [](const auto& op) { return std::string(nsa::to_string(op.param)); });

}  // namespace
}  // namespace suites::s_sweep_cases
