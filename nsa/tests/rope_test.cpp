#include "nsa/model/rope.hpp"

#include <cmath>

#include "nsa/tests/fixtures.hpp"

namespace nsa {
namespace {

using fixtures::cu;
using fixtures::distance;
using fixtures::random;

const auto kDoubles = at::TensorOptions().dtype(at::kDouble);

TEST(Rope, TurnsInterleavedPairs) {
  // D = 4, base 100: pair 0 turns by t, pair 1 by t / 10.
  const auto rotations = rope_rotations(3, 4, 100.0, 1.0, {}, kDoubles);
  const auto x = at::tensor({1., 0., 0., 2.}, at::kDouble).expand({1, 3, 1, 4});
  const auto y = rotate(x, rotations);
  for (int t = 0; t < 3; ++t) {
    const auto wanted =
        at::tensor({std::cos(t), std::sin(t), -2 * std::sin(t / 10.), 2 * std::cos(t / 10.)}, at::kDouble);
    EXPECT_LE(distance(y[0][t][0], wanted), 1e-6) << t;  // the angles are fp32
  }
}

TEST(Rope, EveryHeadTurnsByItself) {
  const auto rotations = rope_rotations(5, 6, 10000.0, 1.0, {}, kDoubles);
  const auto x = random({2, 5, 3, 6}, 1);
  const auto y = rotate(x, rotations);
  for (std::int64_t head = 0; head < 3; ++head)
    EXPECT_LE(distance(y.narrow(2, head, 1), rotate(x.narrow(2, head, 1).contiguous(), rotations)), 1e-15);
  EXPECT_LE(distance(y.norm(2, -1), x.norm(2, -1)), 1e-12);
}

TEST(Rope, ScoresDependOnDistanceOnly) {
  const std::int64_t S = 300, shift = 100;
  const auto options = at::TensorOptions().dtype(at::kFloat);
  const auto rotations = rope_rotations(S, 64, 10000.0, 1.0, {}, options);
  const auto q = random({1, 1, 1, 64}, 2, at::kFloat).expand({1, S, 1, 64}),
             k = random({1, 1, 1, 64}, 3, at::kFloat).expand({1, S, 1, 64});
  const auto scores = at::matmul(rotate(q, rotations).squeeze(2), rotate(k, rotations).squeeze(2).transpose(1, 2))[0];
  const auto near = scores.narrow(0, 0, S - shift).narrow(1, 0, S - shift),
             far = scores.narrow(0, shift, S - shift).narrow(1, shift, S - shift);
  EXPECT_LE(distance(far, near), 1e-5);
}

TEST(Rope, PositionsRestartInEveryDocument) {
  const auto packed = rope_rotations(7, 4, 100.0, 1.0, cu({0, 3, 3, 7}), kDoubles),
             whole = rope_rotations(4, 4, 100.0, 1.0, {}, kDoubles);
  EXPECT_TRUE(at::equal(packed.narrow(0, 0, 3), whole.narrow(0, 0, 3)));
  EXPECT_TRUE(at::equal(packed.narrow(0, 3, 4), whole));
}

TEST(Rope, ScaleDividesPositions) {
  const auto plain = rope_rotations(9, 4, 100.0, 1.0, {}, kDoubles),
             two = rope_rotations(9, 4, 100.0, 2.0, {}, kDoubles),
             half = rope_rotations(5, 4, 100.0, 0.5, {}, kDoubles);
  for (const std::int64_t t : {0, 1, 4}) {
    EXPECT_LE(distance(at::view_as_real(two[2 * t]), at::view_as_real(plain[t])), 1e-12) << t;
    EXPECT_LE(distance(at::view_as_real(half[t]), at::view_as_real(plain[2 * t])), 1e-12) << t;
  }
}

TEST(Rope, Bf16IsTurnedInFp32) {
  const auto x = random({1, 200, 1, 8}, 4, at::kBFloat16);
  const auto y = rotate(x, rope_rotations(200, 8, 10000.0, 1.0, {}, x.options()));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const auto wide = rotate(x.to(at::kDouble), rope_rotations(200, 8, 10000.0, 1.0, {}, kDoubles));
  EXPECT_LE(distance(y, wide), 1.0 / 256);  // one rounding, not an angle lost in bf16
}

}  // namespace
}  // namespace nsa
