// Our own kernels through the backend, exactly: rows that see nothing, the same bits every time, block tables with
// nonsense in them, what is left out, what is refused, and that nothing waits for the device.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gmock/gmock.h>

#include <array>
#include <limits>
#include <string>

#include "nsa/cuda/attend.hpp"
#include "nsa/tests/cuda_fixtures.hpp"

namespace nsa::cuda {
namespace {

using fixtures::cu;
using fixtures::cuda_cases;
using fixtures::CudaCase;
using fixtures::CudaKernels;
using fixtures::CudaShape;
using fixtures::device;
using fixtures::evaluate;
using fixtures::Evaluated;
using fixtures::expect_close;
using fixtures::kSmall;
using fixtures::message_of;
using fixtures::on_device;
using fixtures::Tensors;
using testing::AllOf;
using testing::HasSubstr;

bool all_zero(const at::Tensor& t) { return t.eq(0).all().item<bool>(); }

void expect_same_bits(const std::string& name, const Evaluated& a, const Evaluated& b) {
  for (std::size_t i = 0; i < a.outputs.size(); ++i) EXPECT_TRUE(at::equal(a.outputs[i], b.outputs[i])) << name << i;
  for (std::size_t i = 0; i < a.gradients.size(); ++i)
    EXPECT_TRUE(at::equal(a.gradients[i], b.gradients[i])) << name << ", gradient " << i;
}

// CTAs come in another order every time, in the emulation too.
TEST_F(CudaKernels, TheSameBitsEveryTime) {
  const int times = device().is_cuda() ? 100 : 2;
  const std::int64_t S = device().is_cuda() ? 1000 : 150;
  for (const CudaShape& s : {CudaShape{.S = S, .h = 6, .B = 2}, {.S = S, .h = 16, .Dk = 128, .Dv = 128, .G = 1}})
    for (const CudaCase& c : cuda_cases(s)) {
      const auto first = evaluate(c, ops(), c.inputs);
      for (int i = 0; i < times; ++i) expect_same_bits(c.name, first, evaluate(c, ops(), c.inputs));
    }
  const auto q = on_device({1, S, 12, 64}, 1, at::kBFloat16);
  const auto k = on_device({1, compressed_blocks({}, S), 2, 64}, 2, at::kBFloat16);
  const auto first = select({q, k, {}, {}});
  for (int i = 0; i < times; ++i) EXPECT_TRUE(at::equal(first, select({q, k, {}, {}})));
}

// Tokens after t and compressed blocks that end after it are others, and so are the later tokens' choices: the rows up
// to t keep their bits.
TEST_F(CudaKernels, WhatComesLaterChangesNothingBefore) {
  const at::NoGradGuard no_grad;
  const std::int64_t S = device().is_cuda() ? 1000 : 150;
  const Geometry g{.l = 32, .d = 16, .l_sel = 64, .n_sel = 3, .w = 100};
  for (const CudaShape& s : {CudaShape{.S = S, .h = 6, .g = g}, {.S = S, .h = 3, .Dk = 128, .Dv = 128, .G = 1, .g = g}})
    for (const std::int64_t t : {std::int64_t{40}, std::int64_t{63}, std::int64_t{64}, S - 2}) {
      const auto kept = [&](const at::Tensor& x) { return x.size(1) == S ? t + 1 : compressed_blocks(g, t + 1); };
      const auto same = [&](const at::Tensor& a, const at::Tensor& b) {
        return at::equal(a.narrow(1, 0, kept(a)), b.narrow(1, 0, kept(b)));
      };
      const auto changed = [&](const Tensors& all) {
        Tensors others;
        for (const auto& x : all) {
          others.push_back(x.clone());
          others.back().narrow(1, kept(x), x.size(1) - kept(x)).mul_(-3);
        }
        return others;
      };
      const auto cases = cuda_cases(s);
      for (const CudaCase& c : cases)
        EXPECT_TRUE(same(c.call(ops(), c.inputs)[0], c.call(ops(), changed(c.inputs))[0])) << c.name << " " << t;
      const auto chosen = [&](const Tensors& in) { return select({in[0], in[1], g, {}}); };
      const auto blocks = chosen(cases[1].inputs), other_blocks = chosen(changed(cases[1].inputs));
      EXPECT_TRUE(same(blocks, other_blocks)) << t;
      const auto attended = [&](const Tensors& in, const at::Tensor& table) {
        return attend_selected({in[0], in[1], in[2], table, g, {}}).o;
      };
      EXPECT_TRUE(same(attended(cases[2].inputs, blocks), attended(changed(cases[2].inputs), other_blocks))) << t;
    }
}

TEST_F(CudaKernels, TokensBeforeTheFirstBlockSeeNothing) {
  for (const std::int64_t S : {20, 31, 65}) {
    const CudaCase c = cuda_cases({.S = S, .h = 6, .B = 2})[1];
    const std::int64_t blind = std::min<std::int64_t>(S, 31);
    const auto got = evaluate(c, ops(), c.inputs);
    EXPECT_TRUE(all_zero(got.outputs[0].narrow(1, 0, blind))) << S;
    EXPECT_TRUE(all_zero(got.gradients[0].narrow(1, 0, blind))) << S;
    const auto stats = attend_compressed({c.inputs[0], {c.inputs[1], c.inputs[2]}, {}, {}}).stats;
    EXPECT_TRUE(stats.narrow(2, 0, blind).select(3, 0).isneginf().all().item<bool>());
    EXPECT_TRUE(all_zero(stats.narrow(2, 0, blind).select(3, 1)));
  }
}

TEST_F(CudaKernels, AnEmptyRowOfBlocksGivesZeros) {
  const CudaShape s{.S = 100, .h = 6};
  CudaCase c = cuda_cases(s)[2];
  auto blocks = at::full({s.B, s.S, s.G, s.g.n_sel}, -1, at::device(device()).dtype(at::kInt));
  blocks.narrow(1, 50, 50).select(3, 0).zero_();
  c.call = [s, blocks](const Ops& ops, const Tensors& in) {
    return Tensors{ops.attend_selected({in[0], in[1], in[2], blocks, s.g, {}}).o};
  };
  const auto got = evaluate(c, ops(), c.inputs);
  EXPECT_TRUE(all_zero(got.outputs[0].narrow(1, 0, 50)));
  EXPECT_TRUE(all_zero(got.gradients[0].narrow(1, 0, 50)));
  EXPECT_TRUE(all_zero(got.gradients[1].narrow(1, 64, 36)));  // block 1 is nobody's
  EXPECT_TRUE(all_zero(got.gradients[2].narrow(1, 64, 36)));
  EXPECT_FALSE(all_zero(got.outputs[0].narrow(1, 50, 50)));
}

// Duplicates and numbers outside the document are ignored, wherever they stand.
TEST_F(CudaKernels, NonsenseInTheBlockTableIsIgnored) {
  if (!device().is_cuda()) GTEST_SKIP() << "on the CPU the contract reads the table and refuses it";
  for (const auto& documents : {CuSeqlens(), CuSeqlens(cu({0, 100, 300}))}) {
    const CudaShape s{.S = 300, .h = 3, .g = {.l = 32, .d = 16, .l_sel = 64, .n_sel = 6, .w = 64}};
    const auto rows = [&](std::vector<std::int32_t> row) {
      const auto one = at::tensor(row, at::kInt).view({1, 1, 1, 6});
      return one.expand({s.B, s.S, s.G, 6}).contiguous().to(device());
    };
    const auto with = [&](const at::Tensor& blocks) {
      CudaCase c = cuda_cases(s)[2];
      c.call = [s, blocks, documents](const Ops& ops, const Tensors& in) {
        return Tensors{ops.attend_selected({in[0], in[1], in[2], blocks, s.g, documents}).o};
      };
      return c;
    };
    const CudaCase clean = with(rows({0, 1, -1, -1, -1, -1}));
    const auto wanted = fixtures::by_reference(clean);
    expect_close("clean", evaluate(clean, ops(), clean.inputs), wanted);
    for (const auto& row : std::vector<std::vector<std::int32_t>>{{0, 0, 1, 1, 1, -1},
                                                                  {0, 1, 5, 77, 1 << 30, -1},
                                                                  {-1, 0, -7, 1, -1, 0},
                                                                  {0, 1, 2147483647, -2147483647, 1, 0}}) {
      const CudaCase dirty = with(rows(row));
      expect_close("nonsense", evaluate(dirty, ops(), dirty.inputs), wanted);
    }
  }
}

// To the bit where one gradient alone has the kernel that all have. In the emulation, whose limits are low, one kernel
// makes all gradients of an interval and others one alone (expect_all_gradients_at_once).
TEST_F(CudaKernels, GradientsOnlyForWhatNeedsThem) {
  for (const CudaCase& c : cuda_cases({.S = device().is_cuda() ? 257 : 100, .h = 3})) {
    if (c.name == "compress") continue;  // its two inputs have nothing in common
    const auto all = evaluate(c, ops(), c.inputs);
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      Tensors leaves;
      for (const auto& t : c.inputs) leaves.push_back(t.detach().requires_grad_(leaves.size() == i));
      const auto o = c.call(ops(), leaves)[0];
      const auto weight = fixtures::random(o.sizes(), 20, at::kBFloat16).to(o.options());
      const auto own = torch::autograd::grad({o}, {leaves[i]}, {weight});
      if (device().is_cuda())
        EXPECT_TRUE(at::equal(own[0], all.gradients[i])) << c.name << " " << i;
      else
        EXPECT_LE(fixtures::relative_error(own[0], all.gradients[i]), fixtures::kGradientBound) << c.name << " " << i;
    }
  }
}

// Of much work: all three gradients by interval/sm90_backward/backward.cuh, whose CTAs add to the same sums in turn,
// and one alone by the kernels for dQ or for dK, dV. Tiles of 64 rows, and of fewer; heads outside the tokens and
// inside wider rows, which TMA reads as they lie, give the same bits.
void expect_all_gradients_at_once(const CudaShape& s, bool compressed) {
  SCOPED_TRACE((compressed ? "compressed, " : "window, ") + s.name());
  const bool gpu = device().is_cuda();
  const std::int64_t N = compressed ? compressed_blocks(s.g, s.S) : s.S;
  const auto draw = [&](std::int64_t rows, std::int64_t heads, std::uint64_t seed) {
    return on_device({s.B, rows, heads, s.Dk}, seed, at::kBFloat16);
  };
  const Tensors dense{draw(s.S, s.G * s.h, 1), draw(N, s.G, 2), draw(N, s.G, 3), draw(s.S, s.G * s.h, 4)};  // q k v do
  // `only`: of one input; 3: of all.
  const auto gradients = [&](const Tensors& inputs, std::size_t only) {
    Tensors in, wanted;
    for (const auto& t : {inputs[0], inputs[1], inputs[2]}) {
      in.push_back(t.detach().requires_grad_(only == 3 || only == in.size()));
      if (in.back().requires_grad()) wanted.push_back(in.back());
    }
    const auto o = compressed ? attend_compressed({in[0], {in[1], in[2]}, s.g, {}}).o
                              : attend_window({in[0], in[1], in[2], s.g, {}}).o;
    return torch::autograd::grad({o}, wanted, {inputs[3]});
  };
  const auto all = gradients(dense, 3);
  for (int repeat = 0; repeat < (gpu ? 20 : 1); ++repeat) {
    const auto again = gradients(dense, 3);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(all[i], again[i])) << i;
  }
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_LE(fixtures::relative_error(all[i], gradients(dense, i)[0]), fixtures::kGradientBound) << i;
  const auto heads_outside = [](const at::Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); };
  const auto in_wider_rows = [&](const at::Tensor& t) { return at::cat({t, t}, 3).narrow(3, s.Dk, s.Dk); };
  const auto strided = gradients(
      {heads_outside(dense[0]), in_wider_rows(dense[1]), heads_outside(dense[2]), in_wider_rows(dense[3])}, 3);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(all[i], strided[i])) << i;
}

TEST_F(CudaKernels, AllGradientsOfIntervalsAtOnce) {
  const bool gpu = device().is_cuda();
  const Geometry g{.l = 4, .d = 2, .l_sel = 8, .n_sel = 4, .w = gpu ? 512 : 50};
  using Sizes = std::vector<std::pair<std::int64_t, std::int64_t>>;  // S, h
  for (const auto& [S, h] : gpu ? Sizes{{4200, 16}, {5000, 13}, {9000, 6}} : Sizes{{90, 16}, {70, 13}})
    for (const bool compressed : {true, false})
      expect_all_gradients_at_once({.S = S, .h = h, .Dk = 128, .Dv = 128, .G = gpu ? 4 : 1, .g = g}, compressed);
}

// Width 64 with up to 128 compressed keys, which are one tile: no turns.
TEST_F(CudaKernels, AllGradientsOfFewKeysAtOnce) {
  using Shapes = std::vector<CudaShape>;
  const Geometry g{.l = 4, .d = 2, .l_sel = 8, .n_sel = 4, .w = 50};
  for (const CudaShape& s :
       device().is_cuda() ? Shapes{{.S = 2079, .B = 8}, {.S = 1500, .h = 13, .B = 4}, {.S = 2048, .h = 1, .B = 33}}
                          : Shapes{{.S = 90, .h = 16, .G = 1, .g = g}, {.S = 70, .h = 13, .G = 1, .g = g}})
    expect_all_gradients_at_once(s, true);
}

// What a branch adds to another's dQ is its own, rounded, and the sum is rounded once more, also where TMA adds it: as
// ATen does, with subnormal numbers too.
void expect_added_to_the_bit(const CudaShape& s, kernels::Mask mask, at::ScalarType type) {
  const bool compressed = mask == kernels::Mask::compressed;
  SCOPED_TRACE((compressed ? "compressed, " : "window, ") + s.name() + ", " + at::toString(type));
  const double small = type == at::kHalf ? 0x1p-14 : 1;
  const auto draw = [&](std::int64_t rows, std::int64_t heads, std::uint64_t seed) {
    return on_device({s.B, rows, heads, s.Dk}, seed, type);
  };
  const auto q = draw(s.S, s.G * s.h, 1), dout = draw(s.S, s.G * s.h, 4) * small,
             before = draw(s.S, s.G * s.h, 5) * small;
  const std::int64_t N = compressed ? compressed_blocks(s.g, s.S) : s.S;
  const auto k = draw(N, s.G, 2), v = draw(N, s.G, 3);
  Problem problem = problem_of(mask, q, s.g, {});
  std::string ran;
  problem.on_launch = [&](bool, std::string_view kernel) { ran = kernel; };
  const auto made = attend_forward(q, k, v, {}, problem);
  const auto delta = (made.o.to(at::kFloat) * dout.to(at::kFloat)).sum(3).transpose(1, 2).contiguous();
  const auto gradient = [&](const at::Tensor& dq, bool adds) {
    const Gradients to{dq, at::empty_like(k), at::empty_like(v)};
    std::array passes = {backward_pass(q, k, v, {}, made.stats, dout, delta, problem, to)};
    passes[0].parameters.adds_dq = adds;
    run_backward(passes, q, [] {});
    EXPECT_EQ(ran, "merged wgmma intervals");
    return dq;
  };
  const auto own = gradient(at::full_like(q, std::numeric_limits<double>::quiet_NaN()), false);
  EXPECT_TRUE(at::equal(gradient(before.clone(), true), before + own));
}

TEST_F(CudaKernels, AddsToAnotherBranchesGradientToTheBit) {
  const bool gpu = device().is_cuda();
  const Geometry g{.l = 4, .d = 2, .l_sel = 8, .n_sel = 4, .w = gpu ? 512 : 50};
  const CudaShape wide{.S = gpu ? 4203 : 90, .h = gpu ? 13 : 16, .Dk = 128, .Dv = 128, .G = gpu ? 4 : 1, .g = g};
  const CudaShape few = gpu ? CudaShape{.S = 2079, .B = 8} : CudaShape{.S = 70, .h = 13, .G = 1, .g = g};
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    expect_added_to_the_bit(wide, kernels::Mask::window, type);
    expect_added_to_the_bit(wide, kernels::Mask::compressed, type);
    expect_added_to_the_bit(few, kernels::Mask::compressed, type);
  }
}

TEST_F(CudaKernels, AGradientThatIsSpreadOutIsCopiedFirst) {
  const CudaCase c = cuda_cases({.S = 100, .h = 3})[3];
  Tensors leaves;
  for (const auto& t : c.inputs) leaves.push_back(t.detach().requires_grad_());
  const auto by_sum = torch::autograd::grad({c.call(ops(), leaves)[0].sum()}, leaves);
  const auto o = c.call(ops(), leaves)[0];
  const auto by_ones = torch::autograd::grad({o}, leaves, {at::ones_like(o)});
  for (std::size_t i = 0; i < leaves.size(); ++i) EXPECT_TRUE(at::equal(by_sum[i], by_ones[i])) << i;
}

TEST_F(CudaKernels, ASecondDerivativeIsRefusedByName) {
  for (const CudaCase& c : cuda_cases({.S = 40, .h = 1})) {
    Tensors leaves;
    for (const auto& t : c.inputs) leaves.push_back(t.detach().requires_grad_());
    const auto o = c.call(ops(), leaves)[0];
    const auto twice = [&] {
      (void)torch::autograd::grad({o.sum()}, {leaves[0]}, {}, std::nullopt, /*create_graph=*/true);
    };
    EXPECT_THAT(message_of(twice), AllOf(HasSubstr("derivative for nsa::cuda::"), HasSubstr("is not implemented")));
  }
}

TEST_F(CudaKernels, RefusesByNameWhatItDoesNotServe) {
  const auto window = [](std::int64_t Hq, std::int64_t Dk, std::int64_t Dv, at::ScalarType type, const Geometry& g) {
    return message_of([&] {
      (void)attend_window({on_device({1, 40, Hq, Dk}, 1, type),
                           on_device({1, 40, 1, Dk}, 2, type),
                           on_device({1, 40, 1, Dv}, 3, type),
                           g,
                           {}});
    });
  };
  EXPECT_THAT(window(1, 64, 64, at::kFloat, {}), AllOf(HasSubstr("precision is fp32"), HasSubstr("use sdpa")));
  EXPECT_THAT(window(1, 48, 48, at::kBFloat16, {}), HasSubstr("d_k 48, d_v 48; served: 32/32"));
  EXPECT_THAT(window(17, 64, 64, at::kBFloat16, {}), HasSubstr("17 heads in 1 groups"));
  EXPECT_THAT(window(1, 64, 64, at::kBFloat16, {32, 16, 64, 65, 512}), HasSubstr("65 selected blocks"));
  EXPECT_EQ(window(1, 64, 64, at::kHalf, {}), "");
}

// torch refuses what waits for the device while this lives.
struct NoWaiting {
  NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoWaiting() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
  NoWaiting(const NoWaiting&) = delete;
  NoWaiting& operator=(const NoWaiting&) = delete;
};

TEST_F(CudaKernels, NothingWaitsForTheDevice) {
  if (!device().is_cuda()) GTEST_SKIP() << "there is no device to wait for";
  for (const CuSeqlens& documents : {CuSeqlens(), CuSeqlens(cu({0, 1, 90, 90, 257}))}) {
    const CudaShape s{.S = 257, .h = 3, .cu_seqlens = documents};
    const auto cases = cuda_cases(s);
    for (const CudaCase& c : cases) {
      Tensors leaves;
      for (const auto& t : c.inputs) leaves.push_back(t.detach().requires_grad_());
      const auto sizes = c.call(ops(), leaves)[0].sizes().vec();
      const auto weight = on_device(sizes, 9, s.type);
      const NoWaiting no_waiting;
      EXPECT_NO_THROW((void)torch::autograd::grad({c.call(ops(), leaves)[0]}, {leaves[0]}, {weight})) << c.name;
    }
    const NoWaiting no_waiting;
    EXPECT_NO_THROW((void)select({cases[1].inputs[0], cases[1].inputs[1], s.g, documents}));
  }
}

}  // namespace
}  // namespace nsa::cuda
