// Our own kernels through the backend: every function forward and backward against the reference in fp64.
#include <ATen/ATen.h>

#include "nsa/cuda/select.hpp"
#include "nsa/kernels/attention.hpp"
#include "nsa/tests/cuda_fixtures.hpp"
#include "nsa/tests/model_fixtures.hpp"
#include "nsa/tests/ties.hpp"

namespace nsa::cuda {
namespace {

using fixtures::by_reference;
using fixtures::cu;
using fixtures::cuda_cases;
using fixtures::CudaCase;
using fixtures::CudaKernels;
using fixtures::CudaShape;
using fixtures::device;
using fixtures::evaluate;
using fixtures::expect_close;
using fixtures::expect_same_choice;
using fixtures::kSmall;
using fixtures::lse_of;
using fixtures::on_device;
using fixtures::Tensors;
using fixtures::Ties;

void expect_all_close(const CudaShape& shape) {
  SCOPED_TRACE(shape.name());
  for (const CudaCase& c : cuda_cases(shape)) {
    const auto few =
        c.name == "attend_compressed" || c.name == "attend" ? fixtures::kFewTokensCompressed : fixtures::kFewTokens;
    expect_close(c.name, evaluate(c, ops(), c.inputs), by_reference(c),
                 shape.S < few ? fixtures::kFewKeysBound : fixtures::kGradientBound);
  }
}

// The current device; as one without wgmma, mma.sync serves all that it serves.
kernels::Device gpu(bool hopper) {
  kernels::Device device = kernels::current_device();
  device.hopper = device.hopper && hopper;
  return device;
}

// The choice of a call, document by document, by either kernel.
void expect_choice(const CudaShape& s) {
  SCOPED_TRACE(s.name());
  const std::int64_t N = compressed_blocks(s.g, s.cu_seqlens, s.S);
  const auto q = on_device({s.B, s.S, s.G * s.h, s.Dk}, 1, s.type), k = on_device({s.B, N, s.G, s.Dk}, 4, s.type);
  for (const bool hopper : {true, false}) {
    const auto blocks = select_on(gpu(hopper), {q, k, s.g, s.cu_seqlens});
    std::int64_t first = 0;
    for (const auto& [begin, end] : documents(s.cu_seqlens, s.S)) {
      const std::int64_t length = end - begin, own = compressed_blocks(s.g, length);
      if (length > 0)
        expect_same_choice(blocks.narrow(1, begin, length), q.narrow(1, begin, length), k.narrow(1, first, own), s.g);
      first += own;
    }
  }
}

class CudaWidths : public CudaKernels, public ::testing::WithParamInterface<std::pair<std::int64_t, std::int64_t>> {
 protected:
  // Every number of heads with every length; type and batch take turns. The emulation gets a few of them.
  static std::vector<CudaShape> shapes() {
    std::vector<CudaShape> all, few;
    for (const std::int64_t h : {1, 3, 6, 8, 12, 16})
      for (const std::int64_t S : {1, 2, 31, 32, 33, 63, 64, 65, 100, 257, 1000}) {
        const bool odd = all.size() % 2 == 1;
        all.push_back({.S = S,
                       .h = h,
                       .Dk = GetParam().first,
                       .Dv = GetParam().second,
                       .G = odd ? 1 : 2,
                       .B = all.size() % 3 == 0 ? 2 : 1,
                       .type = odd ? at::kHalf : at::kBFloat16,
                       .g = {.l = 32, .d = 16, .l_sel = 64, .n_sel = 4, .w = 100}});
        if (S <= 100 && all.size() % 7 == 0) few.push_back(all.back());
      }
    return device().is_cuda() ? all : few;
  }
};

TEST_P(CudaWidths, EveryOpForwardAndBackward) {
  for (const CudaShape& shape : shapes()) expect_all_close(shape);
}

TEST_P(CudaWidths, TheChoice) {
  for (const CudaShape& shape : shapes()) expect_choice(shape);
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaWidths, testing::Values(std::pair{32, 32}, std::pair{64, 64}, std::pair{128, 128}, std::pair{192, 128}),
    [](const auto& i) { return std::to_string(i.param.first) + "_" + std::to_string(i.param.second); });

TEST_F(CudaKernels, TiesGoToTheLowerNumber) {
  for (const Ties& x : fixtures::ties(at::kBFloat16)) {
    if (x.Dk < 32 || (!device().is_cuda() && x.S > 400)) continue;
    for (const bool hopper : {true, false})
      EXPECT_EQ(x.wrong_rows(select_on(gpu(hopper), x.args(device()))), 0) << x.name() << (hopper ? " by wgmma" : "");
  }
}

TEST_F(CudaKernels, OtherGeometries) {
  for (const Geometry& g : {kSmall,
                            Geometry{16, 8, 32, 8, 128},
                            {8, 4, 16, 4, 32},
                            {32, 32, 32, 64, 100},
                            {16, 16, 48, 5, 1},
                            {64, 16, 64, 16, 4096},
                            {32, 16, 64, 16, 512}})
    for (const std::int64_t S : {129, 5, 700}) {
      expect_all_close({.S = S, .h = 3, .g = g});
      expect_choice({.S = S, .h = 3, .g = g});
      if (!device().is_cuda()) break;
    }
}

TEST_F(CudaKernels, PackedBatches) {
  const Geometry paper{.l = 32, .d = 16, .l_sel = 64, .n_sel = 4, .w = 100};
  const std::vector<std::pair<Geometry, std::vector<std::int32_t>>> batches = {
      {kSmall, {0, 0, 1, 4, 4, 8, 11, 131, 300}},          // empty, one token, below l, l, odd
      {kSmall, {0, 1, 2, 3}},                              // no block at all
      {paper, {0, 0, 1, 31, 31, 63, 96, 160, 225, 1000}},  // round l and l'
      {paper, {0, 500, 500}}};
  std::size_t number = 0;
  for (const auto& [g, ends] : batches) {
    std::vector<at::ScalarType> types = {at::kHalf, at::kBFloat16};
    if (!device().is_cuda()) types = {types[number++ % 2]};  // half a minute each
    for (const auto type : types) {
      const CudaShape shape{.S = ends.back(), .h = 6, .type = type, .g = g, .cu_seqlens = cu(ends)};
      if (!device().is_cuda() && ends.back() > 500) break;
      expect_all_close(shape);
      expect_choice(shape);
    }
  }
}

// Views of all kinds in the place of the dense inputs: the same numbers, so the same bound.
TEST_F(CudaKernels, StridedInputs) {
  const auto heads_first = [](const at::Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); };
  const auto in_wider_rows = [](const at::Tensor& t) { return at::cat({t, t}, 3).narrow(3, 0, t.size(3)); };
  const auto at_odd_places = [](const at::Tensor& t) { return at::cat({t, t}, 3).narrow(3, 1, t.size(3)); };
  const auto columns_first = [](const at::Tensor& t) { return t.transpose(2, 3).contiguous().transpose(2, 3); };
  const auto one_head = [](const at::Tensor& t) { return t.narrow(2, 0, 1).expand_as(t); };
  for (const auto& change : std::vector<std::function<at::Tensor(const at::Tensor&)>>{
           heads_first, in_wider_rows, at_odd_places, columns_first, one_head})
    for (CudaCase& c : cuda_cases({.S = device().is_cuda() ? 257 : 65, .h = 3, .B = 2})) {
      const std::size_t first = c.name == "combine" ? 1 : 0;  // gates are not rows
      for (std::size_t i = first; i < c.inputs.size(); ++i) c.inputs[i] = change(c.inputs[i]);
      expect_close(c.name, evaluate(c, ops(), c.inputs), by_reference(c));
    }
}

TEST_F(CudaKernels, GatesInFp32) {
  CudaCase c = cuda_cases({.S = 100, .h = 6}).back();
  c.inputs[0] = at::softmax(on_device(c.inputs[0].sizes(), 6, at::kFloat), -1);
  const auto got = evaluate(c, ops(), c.inputs);
  EXPECT_EQ(got.gradients[0].scalar_type(), at::kFloat);
  expect_close(c.name, got, by_reference(c));
}

TEST_F(CudaKernels, StatisticsGiveTheLse) {
  for (const std::int64_t S : {20, 257}) {
    const CudaShape s{.S = S, .h = 6, .B = 2};
    const auto cases = cuda_cases(s);
    const auto& in = cases[1].inputs;
    const auto got = attend_compressed({in[0], {in[1], in[2]}, s.g, {}});
    const auto wide = [&](std::size_t i) { return in[i].to(at::kDouble); };
    const auto wanted = reference::attend_compressed({wide(0), {wide(1), wide(2)}, s.g, {}});
    EXPECT_FALSE(got.lse.defined());
    EXPECT_LE(fixtures::distance(lse_of(got.stats), wanted.lse), 1e-3) << S;
    const auto& rows = cases[3].inputs;
    const auto window = attend_window({rows[0], rows[1], rows[2], s.g, {}});
    const auto exact =
        reference::attend_window({rows[0].to(at::kDouble), rows[1].to(at::kDouble), rows[2].to(at::kDouble), s.g, {}});
    EXPECT_LE(fixtures::distance(lse_of(window.stats), exact.lse), 1e-3) << S;
  }
}

TEST_F(CudaKernels, SelectionWithStatisticsAndWithoutIsTheSame) {
  for (const auto& [Dk, Dv] : {std::pair<std::int64_t, std::int64_t>{64, 64}, {192, 128}}) {
    const CudaShape s{.S = 700, .h = 6, .Dk = Dk, .Dv = Dv};
    const auto in = cuda_cases(s)[1].inputs;
    const auto stats = attend_compressed({in[0], {in[1], in[2]}, s.g, {}}).stats;
    EXPECT_TRUE(at::equal(select({in[0], in[1], s.g, {}, stats}), select({in[0], in[1], s.g, {}})));
  }
}

TEST_F(CudaKernels, AModelTrainsByIt) {
  ModelConfig config = fixtures::tiny();
  config.d_k = config.d_v = 32;
  // By name, not by flag: routing refuses the CPU, and sdpa would be compared with itself in the emulation.
  const auto step = [&](Backend backend) {
    auto model = fixtures::make_model(config);
    model->runtime->ops = [backend](const Call&) { return backend_ops(backend); };
    model->to(device(), at::kBFloat16);
    const auto loss = model->loss(fixtures::bytes({1, 101}, 3).to(device()), cu({0, 0, 40, 101}));
    loss.backward();
    Tensors all = {loss};
    for (const auto& p : model->parameters()) all.push_back(p.grad());
    return all;
  };
  const Tensors own = step(Backend::cuda), plain = step(Backend::sdpa);
  ASSERT_EQ(own.size(), plain.size());
  for (std::size_t i = 0; i < own.size(); ++i) EXPECT_LE(fixtures::distance(own[i], plain[i]), 3e-2) << i;
}

}  // namespace
}  // namespace nsa::cuda
