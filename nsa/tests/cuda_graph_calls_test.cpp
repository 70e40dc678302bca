// An attention call whose kernels go to the GPU as one CUDA graph (kernels/launch/submission.hpp) against one whose
// kernels are launched: the same bits, whatever comes before it, beside it and round it. Needs a GPU.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <cstdlib>
#include <thread>
#include <vector>

#include "nsa/cuda/attend_all.hpp"
#include "nsa/kernels/launch/submission.hpp"
#include "nsa/tests/cuda_fixtures.hpp"

namespace nsa::cuda {
namespace {

using fixtures::cu;
using fixtures::CudaCase;
using fixtures::CudaShape;
using fixtures::on_device;
using fixtures::Tensors;

constexpr std::array kAllWanted = {true, true, true, true, true, true, true, true};

class GraphCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
    if (std::getenv("CUDA_LAUNCH_BLOCKING")) GTEST_SKIP() << "CUDA_LAUNCH_BLOCKING: every kernel by itself";
  }
};

struct Arguments {
  CudaShape shape;
  AllInputs given;
  at::Tensor dout;
};
Arguments arguments(const CudaShape& s, std::uint64_t seed) {
  const std::int64_t N = compressed_blocks(s.g, s.cu_seqlens, s.S), Hq = s.G * s.h;
  const auto draw = [&](std::int64_t rows, std::int64_t heads, std::int64_t width) {
    return on_device({s.B, rows, heads, width}, ++seed, s.type);
  };
  return {
      s,
      {draw(s.S, Hq, s.Dk), draw(N, s.G, s.Dk), draw(N, s.G, s.Dv), draw(s.S, s.G, s.Dk), draw(s.S, s.G, s.Dv),
       draw(s.S, s.G, s.Dk), draw(s.S, s.G, s.Dv), at::softmax(on_device({s.B, s.S, s.G, 3}, ++seed, at::kFloat), -1)},
      draw(s.S, Hq, s.Dv)};
}

// o, the choice of blocks, and all gradients, on the current stream.
Tensors both_passes(const Arguments& x, bool in_one_graph) {
  const auto problems = problems_of(x.given[kQ], x.shape.g, x.shape.cu_seqlens, in_one_graph);
  const auto [o, kept] = attend_all_forward(x.given, problems, x.shape.cu_seqlens);
  const AllInputs gradients = attend_all_backward(kept, x.dout, problems, kAllWanted);
  Tensors all = {o, kept.blocks};
  all.insert(all.end(), gradients.begin(), gradients.end());
  return all;
}

void expect_same_bits(const Tensors& got, const Tensors& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], wanted[i])) << i;
  EXPECT_TRUE(wanted[0].isfinite().all().item<bool>());
}

std::vector<CudaShape> shapes() {
  const Geometry g{.l = 32, .d = 16, .l_sel = 64, .n_sel = 4, .w = 100};
  return {{.S = 2048},
          {.S = 700, .h = 6, .B = 2, .g = g},
          {.S = 20, .h = 3, .g = g},  // no compressed block
          {.S = 131, .h = 16, .Dk = 128, .Dv = 128, .G = 1, .type = at::kHalf, .g = g},
          {.S = 131, .h = 4, .Dk = 192, .Dv = 128, .G = 1, .g = g},
          {.S = 100, .h = 2, .Dk = 32, .Dv = 32, .g = g},
          {.S = 160, .h = 6, .g = g, .cu_seqlens = cu({0, 5, 5, 77, 160})},
          {.S = 9000, .h = 6}};  // the kernels of long sequences, of which some begin early
}

TEST_F(GraphCalls, TheSameBitsForShapesInTurnAndOtherPointers) {
  Tensors earlier;  // lives: what comes later lies elsewhere
  const kernels::Submitted before = kernels::submitted();
  for (std::uint64_t round = 0; round < 5; ++round)
    for (const CudaShape& s : shapes()) {
      SCOPED_TRACE(s.name() + " round " + std::to_string(round));
      const Arguments x = arguments(s, 100 * round);
      const auto wanted = both_passes(x, false), got = both_passes(x, true);
      expect_same_bits(got, wanted);
      earlier.insert(earlier.end(), got.begin(), got.end());
    }
  const kernels::Submitted& after = kernels::submitted();
  EXPECT_GT(after.graphs, before.graphs);
  EXPECT_GT(after.set, before.set);
  EXPECT_EQ(after.refused, before.refused) << after.why;
}

// The grid is an argument of a node too.
TEST_F(GraphCalls, OneGraphServesOtherLengths) {
  for (int i = 0; i < 4; ++i) static_cast<void>(both_passes(arguments({.S = 1024}, 1), true));
  const kernels::Submitted before = kernels::submitted();
  for (const std::int64_t S : {1024, 512, 1500, 1024}) {
    const Arguments x = arguments({.S = S}, static_cast<std::uint64_t>(S));
    expect_same_bits(both_passes(x, true), both_passes(x, false));
  }
  EXPECT_GE(kernels::submitted().graphs - before.graphs, 4);
}

TEST_F(GraphCalls, BothPassesOfAUsualCallAreAGraphEach) {
  const Arguments x = arguments({.S = 2048}, 1);
  for (int i = 0; i < 4; ++i) static_cast<void>(both_passes(x, true));
  const kernels::Submitted before = kernels::submitted();
  static_cast<void>(both_passes(x, true));
  EXPECT_EQ(kernels::submitted().graphs, before.graphs + 2);
  EXPECT_EQ(kernels::submitted().one_by_one, before.one_by_one);
  EXPECT_EQ(kernels::submitted().made, before.made);
}

TEST_F(GraphCalls, SwitchedOffThereIsNoGraph) {
  const kernels::Submitted before = kernels::submitted();
  for (int i = 0; i < 5; ++i) static_cast<void>(both_passes(arguments({.S = 500}, 1), false));
  EXPECT_EQ(kernels::submitted().graphs, before.graphs);
  EXPECT_EQ(kernels::submitted().one_by_one, before.one_by_one);
}

// Many calls on their way at a time, none of which waits for the one before: each has its own arguments.
TEST_F(GraphCalls, CallsInARowEachHaveTheirArguments) {
  std::vector<Arguments> all;
  for (std::uint64_t i = 0; i < 40; ++i) all.push_back(arguments({.S = 300}, 20 * i));
  std::vector<Tensors> got, wanted;
  for (const Arguments& x : all) got.push_back(both_passes(x, true));
  for (const Arguments& x : all) wanted.push_back(both_passes(x, false));
  for (std::size_t i = 0; i < all.size(); ++i) expect_same_bits(got[i], wanted[i]);
}

TEST_F(GraphCalls, TwoStreamsOfOneThread) {
  const Arguments x = arguments({.S = 1500}, 1), y = arguments({.S = 1500}, 2);
  const auto wanted_x = both_passes(x, false), wanted_y = both_passes(y, false);
  const auto one = c10::cuda::getStreamFromPool(), other = c10::cuda::getStreamFromPool();
  at::cuda::getCurrentCUDAStream().synchronize();
  Tensors got_x, got_y;
  for (int i = 0; i < 10; ++i) {
    {
      const c10::cuda::CUDAStreamGuard on(one);
      got_x = both_passes(x, true);
    }
    const c10::cuda::CUDAStreamGuard on(other);
    got_y = both_passes(y, true);
  }
  one.synchronize();
  other.synchronize();
  expect_same_bits(got_x, wanted_x);
  expect_same_bits(got_y, wanted_y);
}

// Both on the default stream, where each may be given memory that the other one has just freed.
TEST_F(GraphCalls, TwoThreads) {
  const Arguments x = arguments({.S = 9000}, 1), y = arguments({.S = 1100}, 2);
  const auto wanted_x = both_passes(x, false), wanted_y = both_passes(y, false);
  const auto often = [](const Arguments& z, std::vector<Tensors>& got) {
    for (int i = 0; i < 20; ++i) got.push_back(both_passes(z, true));
  };
  std::vector<Tensors> got_x, got_y;
  std::thread first([&] { often(x, got_x); }), second([&] { often(y, got_y); });
  first.join();
  second.join();
  ASSERT_EQ(got_x.size(), 20U);
  ASSERT_EQ(got_y.size(), 20U);
  for (std::size_t i = 0; i < got_x.size(); ++i) {
    expect_same_bits(got_x[i], wanted_x);
    expect_same_bits(got_y[i], wanted_y);
  }
}

// There dK and dV of each branch go beside dQ (Note [Keys beside rows], nsa/cuda/attend.hpp): of the first as of a
// small problem, of the second because no kernel makes all three; of the third's selected branch one does. Two
// gradients take turns: what did not wait for its replay's rows would have those of the one before.
TEST_F(GraphCalls, WithinACaptureTheyAreLaunchedIntoIt) {
  for (const CudaShape& s :
       {CudaShape{.S = 1500}, CudaShape{.S = 1100, .h = 6, .B = 8}, CudaShape{.S = 9000, .h = 6}}) {
    SCOPED_TRACE(s.name());
    const Arguments x = arguments(s, 1);
    for (int i = 0; i < 4; ++i) static_cast<void>(both_passes(x, true));
    const std::array given = {arguments(s, 50).dout, x.dout.clone()};
    std::array<Tensors, 2> wanted;
    for (std::size_t i = 0; i < 2; ++i) {
      x.dout.copy_(given[i]);
      wanted[i] = both_passes(x, false);
    }
    at::cuda::CUDAGraph graph;
    Tensors got;
    at::cuda::getCurrentCUDAStream().synchronize();
    {
      const c10::cuda::CUDAStreamGuard on(c10::cuda::getStreamFromPool());
      const kernels::Submitted before = kernels::submitted();
      graph.capture_begin();
      got = both_passes(x, true);
      graph.capture_end();
      EXPECT_EQ(kernels::submitted().graphs, before.graphs);
      for (std::size_t i = 0; i < 10; ++i) {  // whatever comes before what
        for (const auto& t : got) t.zero_();
        x.dout.copy_(given[i % 2]);
        graph.replay();
        at::cuda::getCurrentCUDAStream().synchronize();
        expect_same_bits(got, wanted[i % 2]);
      }
    }
  }
}

}  // namespace
}  // namespace nsa::cuda
