// The residual addition with the RMSNorm behind it, emulated (nsa/kernels/tests/emulation), against sums in fp64.
#include "nsa/kernels/plan/norm_plan.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/tensors.hpp"

namespace nsa::kernels {
namespace {

// A problem with its results; what is not asked for stays undefined.
struct NormProblem {
  int rows, width;
  Storage storage;
  bool delta = true, dsum = true, dweight = true;
  Tensor x, d, weight, sum, y, dy, ds, dx, dw;
  std::vector<float> rstd, workspace;

  NormProblem(int row_count, int columns, Storage type)
      : rows(row_count),
        width(columns),
        storage(type),
        x(type, 1, rows, 1, width),
        d(type, 1, rows, 1, width),
        weight(type, 1, 1, 1, width),
        sum(type, 1, rows, 1, width),
        y(type, 1, rows, 1, width),
        dy(type, 1, rows, 1, width),
        ds(type, 1, rows, 1, width),
        dx(type, 1, rows, 1, width),
        dw(type, 1, 1, 1, width),
        rstd(static_cast<std::size_t>(rows), NAN) {
    std::mt19937 random(1);
    for (Tensor* t : {&x, &d, &weight, &dy, &ds}) t->fill(random, 1);
  }

  [[nodiscard]] const Tensor& input() const { return delta ? sum : x; }
  void run() {
    Norm f;
    f.x = x.rows().data;
    f.delta = delta ? d.rows().data : nullptr;
    f.weight = weight.rows().data;
    f.sum = delta ? sum.rows().data : nullptr;
    f.y = y.rows().data;
    f.rstd = rstd.data();
    f.rows = rows, f.width = width, f.storage = storage;
    norm_forward(f, nullptr);
    NormBackward b;
    b.dy = dy.rows().data;
    b.dsum = dsum ? ds.rows().data : nullptr;
    b.sum = input().rows().data;
    b.weight = weight.rows().data;
    b.rstd = rstd.data();
    b.dx = dx.rows().data;
    b.rows = rows, b.width = width, b.storage = storage;
    const NormBackwardPlan plan = plan_norm_backward(rows, width, emulation::kDevice);
    if (dweight) {
      workspace.assign(static_cast<std::size_t>(plan.workspace), NAN);
      b.dweight = dw.rows().data;
      b.workspace = workspace.data();
    }
    norm_backward(b, plan, nullptr);
  }

  // What is off by more than one rounding and what fp32 sums lose; NaN is. Empty where all is well.
  [[nodiscard]] std::string wrong() const {
    // Half a unit in the last of 8 bits, or of 11.
    const double once = storage == Storage::bf16 ? 1.0 / 256 : 1.0 / 2048, least = 2e-5;
    std::string found;
    const auto compare = [&](const std::string& name, int row, int column, double got, double want) {
      if (found.empty() && !(std::abs(got - want) <= once * std::abs(want) + least))
        found = name + "[" + std::to_string(row) + "," + std::to_string(column) + "] is " + std::to_string(got) +
                ", wanted " + std::to_string(want);
    };
    std::vector<double> sums(static_cast<std::size_t>(width));
    for (int r = 0; r < rows; ++r) {
      const auto z = [&](int c) { return input().at(0, r, 0, c); };
      double square = 0, product = 0;
      for (int c = 0; c < width; ++c) {
        if (delta && bits_of(storage, z(c)) != bits_of(storage, x.at(0, r, 0, c) + d.at(0, r, 0, c)))
          found = "sum[" + std::to_string(r) + "," + std::to_string(c) + "] is not x + delta rounded";
        square += z(c) * z(c);
      }
      const double scale = 1 / std::sqrt(square / width + 1e-6);
      compare("rstd", r, 0, rstd[static_cast<std::size_t>(r)], scale);
      for (int c = 0; c < width; ++c) product += dy.at(0, r, 0, c) * weight.at(0, 0, 0, c) * z(c) * scale / width;
      for (int c = 0; c < width; ++c) {
        const double g = dy.at(0, r, 0, c) * weight.at(0, 0, 0, c);
        compare("y", r, c, y.at(0, r, 0, c), z(c) * scale * weight.at(0, 0, 0, c));
        compare("dx", r, c, dx.at(0, r, 0, c), (dsum ? ds.at(0, r, 0, c) : 0) + scale * (g - z(c) * scale * product));
        sums[static_cast<std::size_t>(c)] += dy.at(0, r, 0, c) * z(c) * scale;
      }
    }
    for (int c = 0; dweight && c < width; ++c)
      compare("dweight", 0, c, dw.at(0, 0, 0, c), sums[static_cast<std::size_t>(c)]);
    for (const Tensor* t : {&sum, &y, &dx, &dw})
      if (!t->surroundings_are_untouched()) found += " something else was written";
    return found;
  }
};

std::string name_of(const NormProblem& p) {
  return std::to_string(p.rows) + " rows of " + std::to_string(p.width) + (p.delta ? "" : ", no delta") +
         (p.dsum ? "" : ", no dsum") + (p.dweight ? "" : ", no dweight");
}
void check_norm(int rows, int width, Storage storage, const std::function<void(NormProblem&)>& change = {}) {
  NormProblem p(rows, width, storage);
  if (change) change(p);
  p.run();
  EXPECT_EQ(p.wrong(), "") << name_of(p);
}

// Every team and number of chunks, with a full and with a broken last chunk; fewer and more rows than teams.
TEST(EmulatedNorm, Widths) {
  for (const int width : {8, 64, 72, 256, 264, 768, 1024}) check_norm(3, width, Storage::bf16);
  for (const int width : {1032, 2048, 4096, 4104, kWidestNorm}) check_norm(3, width, Storage::fp16);
}
TEST(EmulatedNorm, Rows) {
  for (const int rows : {1, 2, 129}) {
    check_norm(rows, 72, Storage::fp16);
    check_norm(rows, 1032, Storage::bf16);
  }
  check_norm(129, 768, Storage::bf16);
}
TEST(EmulatedNorm, WhatIsNotThereIsLeftOut) {
  for (const int width : {72, 2048}) {
    check_norm(9, width, Storage::bf16, [](NormProblem& p) { p.delta = false; });
    check_norm(9, width, Storage::bf16, [](NormProblem& p) { p.dsum = false; });
    check_norm(9, width, Storage::bf16, [](NormProblem& p) { p.dweight = false; });
  }
}
TEST(EmulatedNorm, NoRowsGiveAWeightsGradientOfZero) { check_norm(0, 72, Storage::bf16); }

// The comparison says no: without the residual's gradient, and with a part of the weight's.
TEST(EmulatedNorm, WhatIsDroppedIsSeen) {
  NormProblem p(9, 72, Storage::bf16);
  p.dsum = false;
  p.run();
  p.dsum = true;
  EXPECT_NE(p.wrong().find("dx["), std::string::npos) << p.wrong();
  p.run();
  EXPECT_EQ(p.wrong(), "");
  p.dw.set(0, 0, 0, 71, p.dw.at(0, 0, 0, 71) + 0.1);
  EXPECT_NE(p.wrong().find("dweight[0,71]"), std::string::npos) << p.wrong();
}

TEST(EmulatedNorm, TheOrderOfThreadsAndCtasChangesNoBit) {
  NormProblem first(129, 1024, Storage::bf16), again(129, 1024, Storage::bf16);
  first.run();
  emulation::set_order(7);
  again.run();
  EXPECT_TRUE(again.sum.same_bits(first.sum) && again.y.same_bits(first.y) && again.dx.same_bits(first.dx));
  EXPECT_TRUE(again.dw.same_bits(first.dw));
}

void expect_nan_in(const Tensor& t, const Tensor& clean, int rows, int width, const std::function<bool(int, int)>& at,
                   const std::string& name) {
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < width; ++c)
      if (at(r, c))
        ASSERT_TRUE(std::isnan(t.at(0, r, 0, c))) << name << " " << r << "," << c;
      else
        ASSERT_EQ(t.at(0, r, 0, c), clean.at(0, r, 0, c)) << name << " " << r << "," << c;
}

TEST(EmulatedNorm, ANaNIsSeenWhereItBelongsAndNowhereElse) {
  for (const int width : {72, 1032}) {
    constexpr int kRows = 37, kRow = 5, kColumn = 70;
    NormProblem clean(kRows, width, Storage::bf16);
    clean.run();
    const auto everywhere = [](int, int) { return true; };
    const auto nowhere = [](int, int) { return false; };
    const auto in_row = [](int r, int) { return r == kRow; };
    const auto at_place = [](int r, int c) { return r == kRow && c == kColumn; };
    const auto in_column = [](int, int c) { return c == kColumn; };
    struct Place {
      std::string name;
      Tensor NormProblem::*in;
      int row;
      std::function<bool(int, int)> sum, y, dx, dw;
    };
    const std::vector<Place> places = {{"x", &NormProblem::x, kRow, at_place, in_row, in_row, everywhere},
                                       {"delta", &NormProblem::d, kRow, at_place, in_row, in_row, everywhere},
                                       {"weight", &NormProblem::weight, 0, nowhere, in_column, everywhere, nowhere},
                                       {"dy", &NormProblem::dy, kRow, nowhere, nowhere, in_row, in_column},
                                       {"dsum", &NormProblem::ds, kRow, nowhere, nowhere, at_place, nowhere}};
    for (const Place& place : places) {
      NormProblem p(kRows, width, Storage::bf16);
      (p.*place.in).set(0, place.row, 0, kColumn, NAN);
      p.run();
      expect_nan_in(p.sum, clean.sum, kRows, width, place.sum, place.name + ": sum");
      expect_nan_in(p.y, clean.y, kRows, width, place.y, place.name + ": y");
      expect_nan_in(p.dx, clean.dx, kRows, width, place.dx, place.name + ": dx");
      expect_nan_in(p.dw, clean.dw, 1, width, place.dw, place.name + ": dweight");
    }
  }
}

}  // namespace
}  // namespace nsa::kernels
