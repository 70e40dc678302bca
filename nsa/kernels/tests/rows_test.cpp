// The kernels that only stream memory, emulated (nsa/kernels/tests/emulation), against sums in fp64: compression by the
// mean and the gated sum of the branches.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "nsa/kernels/combine.hpp"
#include "nsa/kernels/pool.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/tensors.hpp"

namespace nsa::kernels {
namespace {

constexpr double kAllowed = 2e-3;  // of fp16

struct Shape {
  int B, S, H, D;
};
// The largest difference, counted against 1 or the value; infinite when something else was written too.
double difference(const Tensor& x, const Shape& shape, const std::function<double(int, int, int, int)>& want) {
  double worst = x.surroundings_are_untouched() ? 0 : INFINITY;
  for (int b = 0; b < shape.B; ++b)
    for (int s = 0; s < shape.S; ++s)
      for (int h = 0; h < shape.H; ++h)
        for (int d = 0; d < shape.D; ++d) {
          const double value = want(b, s, h, d), error = std::abs(x.at(b, s, h, d) - value) / (1 + std::abs(value));
          worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error;
        }
  return worst;
}

void check_pool(int B, const std::vector<int>& boundaries, const Geometry& g, int G, int D) {
  const int S = boundaries.back();
  const Documents documents(boundaries, g);
  const bool packed = boundaries.size() > 2;
  const int N = documents.compressed;
  std::mt19937 random(1);
  Tensor x(Storage::fp16, B, S, G, D, Tensor::Order::tokens_outside, 8), y(Storage::fp16, B, N, G, D);
  x.fill(random, 1);
  std::vector<int> start(N), document_blocks(S);
  for (int t = 0; t < S; ++t) {
    int end = t;
    while (end < S && documents.first_token[end] == documents.first_token[t]) ++end;
    const int length = end - documents.first_token[t];
    document_blocks[t] = length >= g.l ? (length - g.l) / g.d + 1 : 0;
    for (int i = 0; i < document_blocks[t]; ++i)
      start[documents.first_block[t] + i] = documents.first_token[t] + i * g.d;
  }
  Pool p;
  Tensor narrow_x(Storage::fp16, B, S, G, 32), narrow_y(Storage::fp16, B, N, G, 32);  // of another width beside it
  narrow_x.fill(random, 1);
  p.tensors[0] = {narrow_x.rows(), narrow_y.rows(), 32};
  p.tensors[1] = {x.rows(), y.rows(), D};
  p.count = 2;
  p.geometry = g;
  p.B = B, p.S = S, p.N = N, p.G = G;
  p.storage = Storage::fp16;
  if (packed) {
    p.block_start = start.data();
    p.document_blocks = document_blocks.data();
    p.packed = {documents.first_token.data(), documents.first_block.data()};
  }
  pool_forward(p, nullptr);
  const auto mean_of = [&](const Tensor& values) {
    return [&](int b, int i, int head, int d) {
      double sum = 0;
      for (int t = start[i]; t < start[i] + g.l; ++t) sum += values.at(b, t, head, d);
      return sum / g.l;
    };
  };
  EXPECT_LT(difference(y, {B, N, G, D}, mean_of(x)), kAllowed);
  EXPECT_LT(difference(narrow_y, {B, N, G, 32}, mean_of(narrow_x)), kAllowed);
  y.fill(random, 1);
  narrow_y.fill(random, 1);
  pool_backward(p, nullptr);
  const auto share_of = [&](const Tensor& gradient) {
    return [&](int b, int t, int head, int d) {
      double sum = 0;
      for (int i = 0; i < N; ++i)
        if (start[i] <= t && t < start[i] + g.l) sum += gradient.at(b, i, head, d);
      return sum / g.l;
    };
  };
  EXPECT_LT(difference(x, {B, S, G, D}, share_of(y)), kAllowed);
  EXPECT_LT(difference(narrow_x, {B, S, G, 32}, share_of(narrow_y)), kAllowed);
}

TEST(EmulatedPool, OneDocument) {
  check_pool(2, {0, 70}, {32, 16, 64, 4, 512}, 2, 64);
  check_pool(1, {0, 70}, {12, 4, 20, 4, 512}, 1, 192);
  check_pool(1, {0, 7}, {8, 8, 8, 4, 512}, 1, 32);
}
TEST(EmulatedPool, LongBlocks) { check_pool(1, {0, 130}, {40, 20, 40, 4, 512}, 2, 32); }
TEST(EmulatedPool, ManyOutputs) { check_pool(2, {0, 720}, {11, 1, 11, 4, 512}, 2, 192); }
TEST(EmulatedPool, MoreOutputsChangeNoBit) {
  Geometry g;
  g.l = 35, g.d = 1;
  const int S = 750, G = 2, D = 192, few = 20;
  std::mt19937 random(1);
  Tensor x(Storage::bf16, 2, S, G, D), long_y(Storage::bf16, 2, S, G, D), short_y(Storage::bf16, 2, S, G, D);
  x.fill(random, 1);
  Pool p;
  p.count = 1;
  p.geometry = g;
  p.B = 2, p.S = S, p.G = G;
  p.tensors[0] = {x.rows(), long_y.rows(), D}, p.N = S - g.l + 1;
  pool_forward(p, nullptr);
  p.tensors[0].y = short_y.rows(), p.N = few;
  pool_forward(p, nullptr);
  EXPECT_EQ(difference(short_y, {2, few, G, D}, [&](int b, int i, int h, int d) { return long_y.at(b, i, h, d); }), 0);
}
TEST(EmulatedPool, Packed) { check_pool(1, {0, 0, 3, 20, 100, 108, 109, 160}, {8, 4, 16, 4, 512}, 2, 32); }

void check_combine(int B, int S, int h, int G, int D) {
  const int Hq = h * G;
  std::mt19937 random(1);
  const auto make = [&](int room) { return Tensor(Storage::fp16, B, S, Hq, D, Tensor::Order::tokens_outside, room); };
  Tensor branch[3] = {make(0), make(8), make(0)}, dbranch[3] = {make(0), make(8), make(0)}, o = make(8), dout = make(0);
  for (Tensor& x : branch) x.fill(random, 1);
  dout.fill(random, 1);
  std::vector<float> gates(static_cast<std::size_t>(B) * S * G * 3), dgates(gates), delta[3];
  for (float& gate : gates) gate = std::uniform_real_distribution<float>(0, 1)(random);
  Combine f;
  f.gates = gates.data();
  f.gates_fp32 = true;
  f.o = o.rows();
  f.B = B, f.S = S, f.Hq = Hq, f.G = G, f.Dv = D;
  f.storage = Storage::fp16;
  CombineBackward p;
  for (int i = 0; i < 3; ++i) {
    f.branch[i] = branch[i].rows();
    p.dbranch[i] = dbranch[i].rows();
    delta[i].resize(static_cast<std::size_t>(B) * Hq * S);
    p.delta[i] = delta[i].data();
  }
  p.forward = f;
  p.dout = dout.rows();
  p.dgates = dgates.data();
  combine_forward(f, nullptr);
  combine_backward(p, nullptr);
  const auto gate = [&](int i, int b, int t, int head) {
    return gates[((static_cast<std::size_t>(b) * S + t) * G + head / h) * 3 + i];
  };
  EXPECT_LT(difference(o, {B, S, Hq, D},
                       [&](int b, int t, int head, int d) {
                         double sum = 0;
                         for (int i = 0; i < 3; ++i) sum += gate(i, b, t, head) * branch[i].at(b, t, head, d);
                         return sum;
                       }),
            kAllowed);
  for (int i = 0; i < 3; ++i) {
    EXPECT_LT(difference(dbranch[i], {B, S, Hq, D},
                         [&](int b, int t, int head, int d) { return gate(i, b, t, head) * dout.at(b, t, head, d); }),
              kAllowed);
    for (int b = 0; b < B; ++b)
      for (int t = 0; t < S; ++t)
        for (int group = 0; group < G; ++group) {
          double total = 0;
          for (int head = group * h; head < (group + 1) * h; ++head) {
            double row = 0;  // of the gradient as it is stored
            for (int d = 0; d < D; ++d) {
              total += dout.at(b, t, head, d) * branch[i].at(b, t, head, d);
              row += dbranch[i].at(b, t, head, d) * branch[i].at(b, t, head, d);
            }
            EXPECT_NEAR(delta[i][(static_cast<std::size_t>(b) * Hq + head) * S + t], row, 2e-5);
          }
          EXPECT_NEAR(dgates[((static_cast<std::size_t>(b) * S + t) * G + group) * 3 + i], total, 1e-3);
        }
  }

  // See Note [Gated statistics] (combine.hpp): of one branch, so that each has its own.
  std::vector<float> stats(static_cast<std::size_t>(B) * Hq * S * 2), gated(stats.size());
  for (float& x : stats) x = std::uniform_real_distribution<float>(1, 50)(random);
  for (int i = 0; i < 3; ++i) {
    Tensor again = make(8);  // nobody needs it then, but who asks for it has it
    CombineBackward q = p;
    q.dbranch[i] = again.rows();
    q.stats[i] = stats.data();
    q.gated_stats[i] = gated.data();
    combine_backward(q, nullptr);
    EXPECT_EQ(
        difference(again, {B, S, Hq, D}, [&](int b, int t, int head, int d) { return dbranch[i].at(b, t, head, d); }),
        0);
  }
  gates[3] = 0;         // of token 0's second group, or of token 1
  gates[0] = INFINITY;  // of the first
  stats[1] = 0;         // the first row sees nothing
  const std::vector<float> whole = dgates;
  for (int i = 0; i < 3; ++i) {
    CombineBackward q = p;
    q.dbranch[i] = {};
    q.stats[i] = stats.data();
    q.gated_stats[i] = gated.data();
    combine_backward(q, nullptr);
    EXPECT_EQ(dgates, whole);
    for (int b = 0; b < B; ++b)
      for (int t = 0; t < S; ++t)
        for (int head = 0; head < Hq; ++head) {
          const std::size_t row = (static_cast<std::size_t>(b) * Hq + head) * S + t;
          double sum = 0;  // of the gradient as it came
          for (int d = 0; d < D; ++d) sum += dout.at(b, t, head, d) * branch[i].at(b, t, head, d);
          EXPECT_NEAR(delta[i][row], sum, 2e-5 * (1 + std::abs(sum)));
          EXPECT_EQ(gated[2 * row], stats[2 * row]);
          const float own = gate(i, b, t, head), wanted = stats[2 * row + 1] / own;
          if (row == 0)
            EXPECT_EQ(gated[1], 0);
          else if (std::isinf(own))
            EXPECT_TRUE(std::isnan(gated[2 * row + 1]));
          else
            EXPECT_EQ(gated[2 * row + 1], wanted) << own;
        }
  }
}

TEST(EmulatedCombine, Widths) {
  check_combine(2, 20, 3, 2, 64);
  check_combine(1, 33, 16, 1, 128);
  check_combine(1, 5, 1, 2, 32);
  check_combine(1, 9, 6, 2, 192);
}

}  // namespace
}  // namespace nsa::kernels
