// What lies between a layer's projections and its attention, emulated (nsa/kernels/tests/emulation), against sums in
// fp64: RoPE with the mean query, and the gate's network.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>

#include "nsa/kernels/gate.hpp"
#include "nsa/kernels/rotate.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/tensors.hpp"

namespace nsa::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Whether it is within `allowed` of what is wanted, counted against 1 or the value. NaN is not.
::testing::AssertionResult near(double got, double wanted, double allowed) {
  if (std::abs(got - wanted) <= allowed * (1 + std::abs(wanted))) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << got << " instead of " << wanted;
}
double allowed(Storage storage) { return storage == Storage::bf16 ? 4.1e-3 : 5.2e-4; }  // half an ulp

// ---- RoPE

struct Projections {
  int B, S, h, G, Dk, Dv;
  Storage storage = Storage::bf16;
  [[nodiscard]] int Hq() const { return h * G; }
  [[nodiscard]] int width() const { return Hq() * Dk + 3 * G * (Dk + Dv); }
  [[nodiscard]] int k(int kind, int group) const { return Hq() * Dk + (kind * G + group) * Dk; }  // its first column
  [[nodiscard]] int v(int kind, int group) const { return (Hq() + 3 * G) * Dk + (kind * G + group) * Dv; }
};

// Angles that differ from token to token, as a packed batch's do.
std::vector<float> turns(int S, int Dk) {
  std::vector<float> all;
  for (int t = 0; t < S; ++t)
    for (int pair = 0; pair < Dk / 2; ++pair) {
      const double angle = t % 17 * std::pow(100.0, -2.0 * pair / Dk);
      all.push_back(static_cast<float>(std::cos(angle)));
      all.push_back(static_cast<float>(std::sin(angle)));
    }
  return all;
}

// x at `place` of a head of columns, turned by the angles of token t, or back.
template <typename At>
double turned(const std::vector<float>& angles, int Dk, int t, int place, bool back, At x) {
  const std::size_t pair = static_cast<std::size_t>(t * Dk + place / 2 * 2);
  const double cosine = angles[pair], sine = back ? -angles[pair + 1] : angles[pair + 1];
  return place % 2 == 0 ? x(place) * cosine - x(place + 1) * sine : x(place) * cosine + x(place - 1) * sine;
}

void check_rotate(const Projections& s) {
  SCOPED_TRACE(std::to_string(s.S) + " tokens, h " + std::to_string(s.h) + ", G " + std::to_string(s.G) + ", " +
               std::to_string(s.Dk) + "/" + std::to_string(s.Dv));
  std::mt19937 random(1);
  Tensor rows(s.storage, s.B, s.S, 1, s.width()), before(s.storage, s.B, s.S, 1, s.width());
  rows.fill(random, 1);
  for (int b = 0; b < s.B; ++b)
    for (int t = 0; t < s.S; ++t)
      for (int c = 0; c < s.width(); ++c) before.set(b, t, 0, c, rows.at(b, t, 0, c));
  const auto angles = turns(s.S, s.Dk);
  std::vector<float> mean(static_cast<std::size_t>(s.B * s.S * s.G * s.Dk), kNaN);
  Rotate p;
  p.rows = rows.rows().data;
  p.rotations = angles.data();
  p.mean = mean.data();
  p.width = s.width();
  p.B = s.B, p.S = s.S, p.Hq = s.Hq(), p.G = s.G, p.Dk = s.Dk, p.Dv = s.Dv;
  p.storage = s.storage;
  rotate_forward(p, nullptr);
  EXPECT_TRUE(rows.surroundings_are_untouched());
  for (int b = 0; b < s.B; ++b)
    for (int t = 0; t < s.S; ++t) {
      const auto check_head = [&](int first) {
        for (int d = 0; d < s.Dk; ++d) {
          const double wanted =
              turned(angles, s.Dk, t, d, false, [&](int place) { return before.at(b, t, 0, first + place); });
          ASSERT_TRUE(near(rows.at(b, t, 0, first + d), wanted, allowed(s.storage))) << "column " << first + d;
        }
      };
      for (int head = 0; head < s.Hq(); ++head) check_head(head * s.Dk);
      for (int kind = 0; kind < kKinds; ++kind)
        for (int group = 0; group < s.G; ++group) check_head(s.k(kind, group));
      for (int c = s.v(0, 0); c < s.width(); ++c) ASSERT_EQ(rows.at(b, t, 0, c), before.at(b, t, 0, c));
      for (int group = 0; group < s.G; ++group)
        for (int d = 0; d < s.Dk; ++d) {
          double sum = 0;
          for (int head = group * s.h; head < (group + 1) * s.h; ++head) sum += before.at(b, t, 0, head * s.Dk + d);
          ASSERT_TRUE(near(mean[static_cast<std::size_t>(((b * s.S + t) * s.G + group) * s.Dk + d)], sum / s.h, 1e-6));
        }
    }
}

// Backward, without the gradients whose bit in `missing` is set: q, k's, v's, the mean.
void check_rotate_backward(const Projections& s, unsigned missing) {
  SCOPED_TRACE("missing " + std::to_string(missing) + ", h " + std::to_string(s.h) + ", " + std::to_string(s.Dk) + "/" +
               std::to_string(s.Dv));
  std::mt19937 random(2);
  Tensor dq(s.storage, s.B, s.S, s.Hq(), s.Dk, Tensor::Order::heads_outside, 8);
  const auto keys = [&] { return Tensor(s.storage, s.B, s.S, s.G, s.Dk, Tensor::Order::tokens_outside, 8); };
  const auto values = [&] { return Tensor(s.storage, s.B, s.S, s.G, s.Dv); };
  Tensor dk[kKinds] = {keys(), keys(), keys()}, dv[kKinds] = {values(), values(), values()};
  Tensor rows(s.storage, s.B, s.S, 1, s.width());
  std::vector<float> dmean(static_cast<std::size_t>(s.B * s.S * s.G * s.Dk));
  for (float& x : dmean) x = std::normal_distribution<float>(0, 1)(random);
  const auto angles = turns(s.S, s.Dk);
  RotateBackward p;
  p.forward.rows = rows.rows().data;
  p.forward.rotations = angles.data();
  p.forward.width = s.width();
  p.forward.B = s.B, p.forward.S = s.S, p.forward.Hq = s.Hq(), p.forward.G = s.G;
  p.forward.Dk = s.Dk, p.forward.Dv = s.Dv;
  p.forward.storage = s.storage;
  const auto lacks = [&](int i) { return (missing >> i & 1U) != 0; };
  dq.fill(random, 1);
  if (!lacks(0)) p.dq = dq.rows();
  for (int kind = 0; kind < kKinds; ++kind) {
    dk[kind].fill(random, 1);
    dv[kind].fill(random, 1);
    if (!lacks(1 + kind)) p.dk[kind] = dk[kind].rows();
    if (!lacks(4 + kind)) p.dv[kind] = dv[kind].rows();
  }
  if (!lacks(7)) p.dmean = dmean.data();
  rotate_backward(p, nullptr);
  EXPECT_TRUE(rows.surroundings_are_untouched());
  for (int b = 0; b < s.B; ++b)
    for (int t = 0; t < s.S; ++t) {
      for (int head = 0; head < s.Hq(); ++head)
        for (int d = 0; d < s.Dk; ++d) {
          const auto share = static_cast<std::size_t>(((b * s.S + t) * s.G + head / s.h) * s.Dk + d);
          const double wanted =
              (lacks(0) ? 0 : turned(angles, s.Dk, t, d, true, [&](int place) { return dq.at(b, t, head, place); })) +
              (lacks(7) ? 0 : dmean[share] / s.h);
          ASSERT_TRUE(near(rows.at(b, t, 0, head * s.Dk + d), wanted, allowed(s.storage)));
        }
      for (int kind = 0; kind < kKinds; ++kind)
        for (int group = 0; group < s.G; ++group) {
          for (int d = 0; d < s.Dk; ++d) {
            const double back =
                turned(angles, s.Dk, t, d, true, [&](int place) { return dk[kind].at(b, t, group, place); });
            ASSERT_TRUE(near(rows.at(b, t, 0, s.k(kind, group) + d), lacks(1 + kind) ? 0 : back, allowed(s.storage)));
          }
          for (int d = 0; d < s.Dv; ++d)
            ASSERT_EQ(rows.at(b, t, 0, s.v(kind, group) + d), lacks(4 + kind) ? 0 : dv[kind].at(b, t, group, d));
        }
    }
}

const std::vector<Projections> kShapes = {{1, 1, 1, 1, 32, 32, Storage::bf16},   {2, 3, 3, 2, 64, 64, Storage::fp16},
                                          {1, 129, 6, 2, 64, 64, Storage::bf16}, {1, 3, 16, 1, 192, 128, Storage::fp16},
                                          {2, 5, 4, 3, 128, 128, Storage::bf16}, {1, 9, 5, 1, 32, 64, Storage::bf16}};

TEST(EmulatedRotate, Forward) {
  for (const auto& s : kShapes) check_rotate(s);
}
TEST(EmulatedRotate, Backward) {
  for (const auto& s : kShapes) check_rotate_backward(s, 0);
}
TEST(EmulatedRotate, GradientsThatAreNotThereAreZeros) {
  for (unsigned i = 0; i < 8; ++i) check_rotate_backward({1, 3, 3, 2, 64, 32}, 1U << i);
  check_rotate_backward({1, 3, 3, 2, 64, 32}, 0x7f);  // the mean's alone
  check_rotate_backward({1, 3, 3, 2, 64, 32}, 0xff);
}
TEST(EmulatedRotate, NaNStays) {
  const Projections s{1, 2, 3, 1, 32, 32};
  Tensor rows(s.storage, s.B, s.S, 1, s.width());
  std::mt19937 random(3);
  rows.fill(random, 1);
  rows.set(0, 1, 0, s.Dk + 5, kNaN);   // of the second head
  rows.set(0, 0, 0, s.k(2, 0), kNaN);  // of k_win
  const auto angles = turns(s.S, s.Dk);
  std::vector<float> mean(static_cast<std::size_t>(s.S * s.Dk));
  Rotate p;
  p.rows = rows.rows().data;
  p.rotations = angles.data();
  p.mean = mean.data();
  p.width = s.width();
  p.B = 1, p.S = s.S, p.Hq = s.Hq(), p.G = 1, p.Dk = s.Dk, p.Dv = s.Dv;
  rotate_forward(p, nullptr);
  for (int t = 0; t < s.S; ++t) {
    for (int c = 0; c < s.width(); ++c) {
      const bool of_pair = t == 1 ? c / 2 == (s.Dk + 5) / 2 : c / 2 == s.k(2, 0) / 2;
      EXPECT_EQ(std::isnan(rows.at(0, t, 0, c)), of_pair) << t << " " << c;
    }
    for (int d = 0; d < s.Dk; ++d)
      EXPECT_EQ(std::isnan(mean[static_cast<std::size_t>(t * s.Dk + d)]), t == 1 && d == 5);
  }
}

// ---- the gate

struct Network {
  int rows, Dk;
  bool softmax = true;
  double tau = 1;
  Storage storage = Storage::bf16;
  [[nodiscard]] int hidden() const { return Dk / 2; }
};

// Weights as they are stored, at multiples of 16 bytes.
struct Weights {
  Weights(Storage as, std::size_t count) : storage(as), data(count / 4 + 2) {}
  [[nodiscard]] std::uint16_t* bits() { return reinterpret_cast<std::uint16_t*>(data.data()); }
  [[nodiscard]] double at(int i) const {
    return value_of(storage, reinterpret_cast<const std::uint16_t*>(data.data())[i]);
  }
  void fill(std::mt19937& random, int count, double size) {
    for (int i = 0; i < count; ++i) bits()[i] = bits_of(storage, std::normal_distribution<double>(0, size)(random));
  }
  Storage storage;
  std::vector<std::uint64_t> data;
};

struct GateProblem {
  explicit GateProblem(const Network& n)
      : s(n),
        mean(static_cast<std::size_t>(n.rows * n.Dk)),
        gates(static_cast<std::size_t>(n.rows * 3), kNaN),
        dgates(gates.size()),
        dmean(mean.size(), kNaN),
        w{made(n.hidden() * n.Dk), made(n.hidden()), made(3 * n.hidden()), made(3)},
        dw{made(n.hidden() * n.Dk), made(n.hidden()), made(3 * n.hidden()), made(3)},
        partials(static_cast<std::size_t>(gate_partials_bytes(n.rows, n.Dk) / 4) + 4, kNaN) {
    std::mt19937 random(4);
    std::normal_distribution<float> normal(0, 1);
    for (float& x : mean) x = normal(random);
    for (float& x : dgates) x = normal(random);
    const std::array sizes = {n.hidden() * n.Dk, n.hidden(), 3 * n.hidden(), 3};
    for (std::size_t i = 0; i < w.size(); ++i)
      w[i].fill(random, sizes[i], i < 2 ? 1 / std::sqrt(n.Dk) : 1 / std::sqrt(n.hidden()));
  }
  [[nodiscard]] Weights made(int count) const { return {s.storage, static_cast<std::size_t>(count)}; }
  void run(bool want_mean = true, bool want_weights = true) {
    GateBackward p;
    Gate& f = p.forward;
    f.mean = mean.data();
    f.w1 = w[0].bits(), f.b1 = w[1].bits(), f.w2 = w[2].bits(), f.b2 = w[3].bits();
    f.gates = gates.data();
    f.rows = s.rows;
    f.Dk = s.Dk;
    f.tau = static_cast<float>(s.tau);
    f.softmax = s.softmax;
    f.storage = s.storage;
    gate_forward(f, nullptr);
    p.dgates = dgates.data();
    if (want_mean) p.dmean = dmean.data();
    if (want_weights) {
      p.partials = partials.data();
      p.dw1 = dw[0].bits(), p.db1 = dw[1].bits(), p.dw2 = dw[2].bits(), p.db2 = dw[3].bits();
    }
    gate_backward(p, nullptr);
  }
  Network s;
  std::vector<float> mean, gates, dgates, dmean;
  std::array<Weights, 4> w, dw;
  std::vector<float> partials;
};

void check_gate(const Network& n) {
  SCOPED_TRACE(std::to_string(n.rows) + " rows, width " + std::to_string(n.Dk) + (n.softmax ? "" : ", sigmoid"));
  GateProblem g(n);
  g.run();
  const int H = n.hidden(), D = n.Dk;
  std::vector<double> dw1(static_cast<std::size_t>(H * D)), db1(static_cast<std::size_t>(H)),
      dw2(static_cast<std::size_t>(3 * H)), db2(3);
  for (int row = 0; row < n.rows; ++row) {
    std::vector<double> a(static_cast<std::size_t>(H)), s(a.size()), da(a.size());
    double x[3], total = 0, carried = 0;
    for (int j = 0; j < H; ++j) {
      double sum = g.w[1].at(j);
      for (int k = 0; k < D; ++k) sum += g.w[0].at(j * D + k) * g.mean[static_cast<std::size_t>(row * D + k)];
      a[static_cast<std::size_t>(j)] = sum;
      s[static_cast<std::size_t>(j)] = sum / (1 + std::exp(-sum));
    }
    for (int i = 0; i < 3; ++i) {
      x[i] = g.w[3].at(i);
      for (int j = 0; j < H; ++j) x[i] += g.w[2].at(i * H + j) * s[static_cast<std::size_t>(j)];
      x[i] = n.softmax ? std::exp(x[i] / n.tau) : 1 / (1 + std::exp(-x[i] / n.tau));
      total += x[i];
    }
    for (int i = 0; i < 3; ++i) {
      if (n.softmax) x[i] /= total;
      ASSERT_TRUE(near(g.gates[static_cast<std::size_t>(row * 3 + i)], x[i], 2e-6));
      carried += x[i] * g.dgates[static_cast<std::size_t>(row * 3 + i)];
    }
    for (int i = 0; i < 3; ++i) {
      const double d = g.dgates[static_cast<std::size_t>(row * 3 + i)];
      const double dx = (n.softmax ? x[i] * (d - carried) : x[i] * (1 - x[i]) * d) / n.tau;
      db2[static_cast<std::size_t>(i)] += dx;
      for (int j = 0; j < H; ++j) {
        dw2[static_cast<std::size_t>(i * H + j)] += dx * s[static_cast<std::size_t>(j)];
        const double open = 1 / (1 + std::exp(-a[static_cast<std::size_t>(j)]));
        da[static_cast<std::size_t>(j)] +=
            dx * g.w[2].at(i * H + j) * open * (1 + a[static_cast<std::size_t>(j)] * (1 - open));
      }
    }
    for (int k = 0; k < D; ++k) {
      double sum = 0;
      for (int j = 0; j < H; ++j) sum += da[static_cast<std::size_t>(j)] * g.w[0].at(j * D + k);
      ASSERT_TRUE(near(g.dmean[static_cast<std::size_t>(row * D + k)], sum, 4e-6));
    }
    for (int j = 0; j < H; ++j) {
      db1[static_cast<std::size_t>(j)] += da[static_cast<std::size_t>(j)];
      for (int k = 0; k < D; ++k)
        dw1[static_cast<std::size_t>(j * D + k)] +=
            da[static_cast<std::size_t>(j)] * g.mean[static_cast<std::size_t>(row * D + k)];
    }
  }
  const std::array<const std::vector<double>*, 4> wanted = {&dw1, &db1, &dw2, &db2};
  for (std::size_t i = 0; i < wanted.size(); ++i)
    for (std::size_t j = 0; j < wanted[i]->size(); ++j)
      ASSERT_TRUE(near(g.dw[i].at(static_cast<int>(j)), (*wanted[i])[j], allowed(n.storage))) << "weight " << i;
}

TEST(EmulatedGate, ForwardAndBackward) {
  check_gate({1, 32});
  check_gate({64, 64, true, 0.5, Storage::fp16});
  check_gate({65, 64, false, 2});
  check_gate({258, 32, true, 1, Storage::fp16});
  check_gate({130, 128});
  check_gate({33, 192, false});
  check_gate({70, 192, true, 0.25});
}

TEST(EmulatedGate, MoreTilesThanCtas) { check_gate({128 * 64 + 100, 32}); }

TEST(EmulatedGate, OnlyWhatIsWanted) {
  GateProblem all({70, 64}), mean({70, 64}), weights({70, 64});
  all.run();
  mean.run(true, false);
  weights.run(false, true);
  EXPECT_EQ(mean.dmean, all.dmean);
  EXPECT_TRUE(std::isnan(weights.dmean[0]));
  for (std::size_t i = 0; i < all.dw.size(); ++i) {
    EXPECT_EQ(weights.dw[i].data, all.dw[i].data);
    EXPECT_EQ(mean.dw[i].data, std::vector<std::uint64_t>(mean.dw[i].data.size())) << "untouched";
  }
}

TEST(EmulatedGate, TheSameBitsInEveryOrder) {
  GateProblem first({700, 64}), second({700, 64});
  first.run();
  emulation::set_order(7);
  second.run();
  EXPECT_EQ(first.gates, second.gates);
  EXPECT_EQ(first.dmean, second.dmean);
  for (std::size_t i = 0; i < first.dw.size(); ++i) EXPECT_EQ(first.dw[i].data, second.dw[i].data);
}

TEST(EmulatedGate, NoRowsGiveZeros) {
  GateProblem none({0, 32});
  for (auto& w : none.dw) std::fill(w.data.begin(), w.data.end(), ~std::uint64_t{0});
  none.run();
  const std::array sizes = {16 * 32, 16, 3 * 16, 3};
  for (std::size_t i = 0; i < none.dw.size(); ++i)
    for (int j = 0; j < sizes[i]; ++j) ASSERT_EQ(none.dw[i].at(j), 0);
}

TEST(EmulatedGate, NaNStays) {
  for (const bool softmax : {true, false}) {
    GateProblem g({70, 64, softmax});
    g.mean[3 * 64 + 9] = kNaN;
    g.dgates[40 * 3 + 1] = kNaN;
    g.run();
    for (int row = 0; row < 70; ++row) {
      for (int i = 0; i < 3; ++i)
        EXPECT_EQ(std::isnan(g.gates[static_cast<std::size_t>(row * 3 + i)]), row == 3) << row;
      for (int k = 0; k < 64; ++k)
        EXPECT_EQ(std::isnan(g.dmean[static_cast<std::size_t>(row * 64 + k)]), row == 3 || row == 40) << row;
    }
    for (std::size_t i = 0; i < g.dw.size(); ++i) EXPECT_TRUE(std::isnan(g.dw[i].at(0))) << i;
  }
}

}  // namespace
}  // namespace nsa::kernels
