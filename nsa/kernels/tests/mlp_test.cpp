// The products with the SiLU in them, emulated (nsa/kernels/tests/emulation), against sums in fp64.
#include "nsa/kernels/mlp.hpp"

#include <gmock/gmock.h>

#include <string>

#include "nsa/kernels/plan/device.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/tensors.hpp"

namespace nsa::kernels {
namespace {

constexpr Device kTwoSms{.hopper = true, .sm_count = 2};

struct Sizes {
  int rows, inner, wide;
  Storage storage = Storage::bf16;
  [[nodiscard]] std::string name() const {
    return std::to_string(rows) + " x " + std::to_string(inner) + " x " + std::to_string(wide);
  }
};
// Fewer rows and columns than a tile, more tiles than CTAs, rows and columns beyond a tile's, one step and more of
// them than the ring has places.
std::vector<Sizes> sizes() {
  return {{1, 64, 64},   {192, 64, 256, Storage::fp16}, {200, 320, 320}, {130, 128, 192, Storage::fp16}, {17, 448, 256},
          {400, 64, 576}};
}

class Matrix : public Tensor {
 public:
  Matrix(Storage storage, int rows, int columns) : Tensor(storage, 1, rows, 1, columns) {}
  [[nodiscard]] double at(int row, int column) const { return Tensor::at(0, row, 0, column); }
  void set(int row, int column, double x) { Tensor::set(0, row, 0, column, x); }
  [[nodiscard]] void* data() const { return rows().data; }
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// Half an ulp for each time that a value is rounded, and what fp32 sums cost beside.
bool near(double got, double wanted, Storage storage, int roundings, double size) {
  const double ulp = storage == Storage::bf16 ? 4.1e-3 : 5.2e-4;
  return std::abs(got - wanted) <= roundings * ulp * std::abs(wanted) + 1e-4 * ulp * size + 1e-6 * size;
}

struct Forward {
  Matrix x, w, hidden, active;
  explicit Forward(const Sizes& s)
      : x(s.storage, s.rows, s.inner),
        w(s.storage, s.wide, s.inner),
        hidden(s.storage, s.rows, s.wide),
        active(s.storage, s.rows, s.wide) {
    std::mt19937 random(1);
    x.fill(random, 1);
    w.fill(random, 2 / std::sqrt(s.inner));
  }
  void run(const Sizes& s) const {
    silu_product({x.data(), w.data(), hidden.data(), active.data(), s.rows, s.inner, s.wide, s.storage}, kTwoSms,
                 nullptr);
  }
};

TEST(SiluProduct, IsTheProductAndItsSilu) {
  for (const Sizes& s : sizes()) {
    SCOPED_TRACE(s.name());
    const Forward all(s);
    all.run(s);
    EXPECT_TRUE(all.hidden.surroundings_are_untouched());
    EXPECT_TRUE(all.active.surroundings_are_untouched());
    for (int row = 0; row < s.rows; ++row)
      for (int column = 0; column < s.wide; ++column) {
        double sum = 0;
        for (int k = 0; k < s.inner; ++k) sum += all.x.at(row, k) * all.w.at(column, k);
        const double hidden = all.hidden.at(row, column);  // as it was rounded
        ASSERT_TRUE(near(hidden, sum, s.storage, 1, 4)) << row << ' ' << column << ' ' << hidden << ' ' << sum;
        ASSERT_TRUE(near(all.active.at(row, column), hidden * sigmoid(hidden), s.storage, 1, 4))
            << row << ' ' << column << ' ' << hidden;
      }
  }
}

TEST(SiluProduct, BackwardIsTheProductTimesTheDerivative) {
  for (const Sizes& s : sizes()) {
    SCOPED_TRACE(s.name());
    std::mt19937 random(2);
    Matrix dy(s.storage, s.rows, s.inner), w(s.storage, s.inner, s.wide), hidden(s.storage, s.rows, s.wide);
    dy.fill(random, 1);
    w.fill(random, 1 / std::sqrt(s.inner));
    hidden.fill(random, 3);
    const Matrix dhidden(s.storage, s.rows, s.wide);
    silu_product_backward({dy.data(), w.data(), hidden.data(), dhidden.data(), s.rows, s.inner, s.wide, s.storage},
                          kTwoSms, nullptr);
    EXPECT_TRUE(dhidden.surroundings_are_untouched());
    for (int row = 0; row < s.rows; ++row)
      for (int column = 0; column < s.wide; ++column) {
        double sum = 0;
        for (int k = 0; k < s.inner; ++k) sum += dy.at(row, k) * w.at(k, column);
        const double x = hidden.at(row, column), part = sigmoid(x);
        const double wanted = sum * part * (1 + x * (1 - part));
        ASSERT_TRUE(near(dhidden.at(row, column), wanted, s.storage, 2, 4))
            << row << ' ' << column << ' ' << dhidden.at(row, column) << ' ' << wanted;
      }
  }
}

// Infinite, huge and NaN, and only in their rows.
TEST(SiluProduct, WhatIsNotFiniteStaysInItsRow) {
  const Sizes s{70, 64, 64};
  Forward all(s);
  for (int column = 0; column < s.wide; ++column)
    for (int k = 0; k < s.inner; ++k) all.w.set(column, k, k == column ? 1 : 0);
  for (int k = 0; k < s.inner; ++k) all.x.set(3, k, 0);
  const double inputs[] = {-100, -3e38, 3e38, 1e-30, 0};
  for (int i = 0; i < 5; ++i) all.x.set(3, i, inputs[i]);
  all.x.set(5, 7, NAN);
  all.x.set(6, 7, INFINITY);
  all.run(s);
  EXPECT_EQ(all.active.at(3, 0), 0);
  EXPECT_EQ(all.active.at(3, 1), 0);
  EXPECT_GT(all.active.at(3, 2), 2.9e38);
  EXPECT_EQ(all.active.at(3, 4), 0);
  for (int column = 0; column < s.wide; ++column) EXPECT_TRUE(std::isnan(all.active.at(5, column)));
  EXPECT_EQ(all.active.at(6, 7), INFINITY);
  for (const int row : {4, 7})
    for (int column = 0; column < s.wide; ++column) EXPECT_TRUE(std::isfinite(all.active.at(row, column)));
}

TEST(SiluProduct, WhatIsNotServedIsRefusedInWords) {
  using ::testing::HasSubstr;
  constexpr Device kGpu{.hopper = true, .sm_count = 132};
  EXPECT_EQ(silu_product_refusal(16384, 768, 3072, kGpu), "");
  EXPECT_EQ(silu_product_refusal(961, 768, 3072, kGpu), "");  // 6 x 12 tiles
  EXPECT_THAT(silu_product_refusal(960, 768, 3072, kGpu), HasSubstr("fewer than 961 rows"));
  constexpr Device kWhole{.hopper = true, .sm_count = 132, .limits = {.sms_a_silu_tile = 1}};
  EXPECT_EQ(silu_product_refusal(1921, 768, 3072, kWhole), "");  // 11 x 12 tiles
  EXPECT_THAT(silu_product_refusal(1920, 768, 3072, kWhole), HasSubstr("fewer than 1921 rows"));
  EXPECT_THAT(silu_product_refusal(0, 64, 64, {.hopper = true, .sm_count = 1}), HasSubstr("fewer than 1 rows"));
  EXPECT_THAT(silu_product_refusal(std::int64_t{1} << 31, 64, 64, kGpu), HasSubstr("2^31 rows"));
  EXPECT_THAT(silu_product_refusal(16384, 760, 3072, kGpu), HasSubstr("widths 760 and 3072"));
  EXPECT_THAT(silu_product_refusal(16384, 768, 3080, kGpu), HasSubstr("widths 768 and 3080"));
  EXPECT_THAT(silu_product_refusal(16384, 768, 3072, {.hopper = false, .sm_count = 108}), HasSubstr("wgmma"));
}

}  // namespace
}  // namespace nsa::kernels
