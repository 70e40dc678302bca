// The kernel against ATen's reduction, bit for bit. Linked with its emulation it runs on the processor.
#include "suites/probes/row_maxima.hpp"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nsa/kernels/params.hpp"
#include "suites/probes/row_maxima_kernel.hpp"

namespace suites::probes {
namespace row_maxima_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
const at::ScalarType kTypes[] = {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble};

at::Device device() { return nsa::kernels::is_emulated() ? at::kCPU : at::kCUDA; }

class RowMaximaKernel : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() && !nsa::kernels::is_emulated()) GTEST_SKIP() << "no CUDA device; its emulation is tested";
    at::manual_seed(7);
  }
};

at::Tensor random(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randn(sizes, at::TensorOptions(at::kDouble)).to(type).to(device());
}

std::vector<std::int64_t> all_but(const at::Tensor& t, std::int64_t row) {
  std::vector<std::int64_t> others;
  for (std::int64_t i = 0; i < t.dim(); ++i)
    if (i != row) others.push_back(i);
  return others;
}

at::Tensor expected(const TensorRows& x) {
  const auto wide = x.value.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto others = all_but(x.value, x.row);
  if (x.positive) return x.value.to(wide).amax(others).clamp_min(0).view({-1});
  return at::linalg_vector_norm(x.value, kInf, others, /*keepdim=*/false, wide).view({-1});
}

testing::AssertionResult same(const at::Tensor& got, const at::Tensor& wanted) {
  if (got.sizes() != wanted.sizes()) return testing::AssertionFailure() << got.sizes() << " numbers";
  const at::Tensor a = got.to(at::kDouble), b = wanted.to(at::kDouble);
  if ((a.eq(b) | (a.isnan() & b.isnan())).all().item<bool>()) return testing::AssertionSuccess();
  const at::Tensor where = at::nonzero((a.eq(b) | (a.isnan() & b.isnan())).logical_not()).flatten();
  const auto row = where[0].item<std::int64_t>();
  return testing::AssertionFailure() << where.size(0) << " rows differ, first row " << row << ": "
                                     << a[row].item<double>() << " for " << b[row].item<double>();
}

testing::AssertionResult as_expected(const std::vector<TensorRows>& tensors) {
  const RowMaximaOf got = row_maxima(tensors);
  std::int64_t first = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor own = got.values.slice(0, first, got.ends[i]);
    first = got.ends[i];
    if (tensors[i].row < 0) own = own.max().view({1});
    if (const auto result = same(own, expected(tensors[i])); !result)
      return testing::AssertionFailure() << "tensor " << i << ", " << tensors[i].value.toString() << " "
                                         << tensors[i].value.sizes() << " strides " << tensors[i].value.strides()
                                         << " row " << tensors[i].row << ": " << result.message();
  }
  return testing::AssertionSuccess();
}

TEST_F(RowMaximaKernel, TakesRowsOfEveryTypeCountAndWidth) {
  for (const at::ScalarType type : kTypes) {
    for (const std::int64_t inner : {1, 3, 64, 100}) {
      for (const std::int64_t rows : {1, 7, 130}) {
        EXPECT_TRUE(as_expected({{random({1, rows, 3, inner}, type), 1}}));
        EXPECT_TRUE(as_expected({{random({2, rows, inner}, type), 1}}));
      }
    }
    EXPECT_TRUE(as_expected({{random({1, 2049, 8}, type), 1}}));
    EXPECT_TRUE(as_expected({{random({1, 3, 12, 64}, type), 1}}));
    EXPECT_TRUE(as_expected({{random({1, 2, 5000}, type), 1}}));  // several rounds of a warp
  }
}

// A value at the first or last place of a row, and of the tensor.
TEST_F(RowMaximaKernel, LosesNoNanInfinityNorDenormal) {
  for (const at::ScalarType type : kTypes) {
    const double least = type == at::kHalf       ? std::ldexp(1, -24)
                         : type == at::kDouble   ? std::numeric_limits<double>::denorm_min()
                         : type == at::kBFloat16 ? std::ldexp(1, -133)
                                                 : std::ldexp(1, -149);
    for (const std::int64_t inner : {5, 64}) {  // element by element, 16 bytes at once
      for (const double value : {kNan, -kNan, kInf, -kInf, -0.0, least, -least}) {
        for (const bool zeros : {true, false}) {
          at::Tensor t = random({1, 9, 2, inner}, type);
          if (zeros) t.zero_();
          t[0][0][0][0] = value;
          t[0][4][1][inner - 1] = value;
          t[0][8][0][0] = value;
          t[0][8][1][inner - 1] = value;
          EXPECT_TRUE(as_expected({{t, 1}})) << value << " among " << (zeros ? "zeros" : "numbers");
          EXPECT_TRUE(as_expected({{t, 1, /*positive=*/true}})) << value << " of a log-sum-exp";
          const at::Tensor largest = row_maxima({{t, 1}}).values;
          EXPECT_EQ(largest.isfinite().sum().item<std::int64_t>(), std::isfinite(value) ? 9 : 6);
        }
      }
      at::Tensor both = random({1, 2, inner}, type);  // NaN is before infinity, wherever it stands
      both[0][0][0] = kInf;
      both[0][0][inner - 1] = kNan;
      both[0][1][0] = kNan;
      both[0][1][inner - 1] = -kInf;
      EXPECT_TRUE(row_maxima({{both, 1}}).values.isnan().all().item<bool>());
    }
  }
}

// Around what is looked at stand NaNs.
TEST_F(RowMaximaKernel, TakesStridesAndReadsNothingElse) {
  for (const at::ScalarType type : kTypes) {
    const auto inside = [&](at::IntArrayRef sizes, at::IntArrayRef from) {
      std::vector<std::int64_t> whole;
      for (std::size_t i = 0; i < sizes.size(); ++i) whole.push_back(sizes[i] + from[i] + 3);
      at::Tensor t = at::full(whole, kNan, at::TensorOptions(type)).to(device());
      for (std::size_t i = 0; i < sizes.size(); ++i) t = t.narrow(static_cast<std::int64_t>(i), from[i], sizes[i]);
      return t.copy_(random(sizes, type));
    };
    EXPECT_TRUE(as_expected({{inside({1, 9, 2, 64}, {0, 1, 1, 8}), 1}}));
    EXPECT_TRUE(as_expected({{inside({1, 9, 2, 64}, {1, 0, 2, 3}), 1}}));
    EXPECT_TRUE(as_expected({{inside({2, 9, 100}, {1, 2, 1}), 1}}));
    EXPECT_TRUE(as_expected({{inside({2, 3, 17}, {0, 1, 5}).transpose(1, 2), 1}}));
    EXPECT_TRUE(as_expected({{inside({2, 3, 4, 5, 6}, {1, 1, 1, 1, 1}), 1}}));  // nothing to join
    EXPECT_TRUE(as_expected({{inside({2, 3, 2, 4, 5, 3}, {1, 1, 1, 1, 1, 1}), 1}}));
    EXPECT_TRUE(as_expected({{inside({2, 3, 17}, {1, 1, 1}), 2}}));  // a row is the innermost dimension
    EXPECT_TRUE(as_expected({{inside({2, 3, 17}, {1, 1, 1}), 2, /*positive=*/true}}));
    EXPECT_TRUE(as_expected({{inside({4, 40}, {1, 1}), -1}}));
    EXPECT_TRUE(as_expected({{random({2, 4, 33, 64}, type).transpose(1, 2), 1}}));  // heads before tokens
    EXPECT_TRUE(as_expected({{random({1, 9, 1, 16}, type).expand({3, 9, 5, 16}), 1}}));
    EXPECT_TRUE(as_expected({{random({1, 1, 1, 16}, type).expand({3, 9, 5, 16}), 1}}));
    EXPECT_TRUE(as_expected({{random({1, 12, 16}, type).slice(1, 0, 12, 2).slice(2, 0, 16, 3), 1}}));
  }
}

TEST_F(RowMaximaKernel, TakesTensorsWithoutRows) {
  for (const at::ScalarType type : kTypes) {
    EXPECT_TRUE(as_expected({{random({}, type)}}));
    EXPECT_TRUE(as_expected({{random({1}, type)}}));
    EXPECT_TRUE(as_expected({{random({777}, type)}}));
    EXPECT_TRUE(as_expected({{random({33, 100}, type)}}));
    EXPECT_TRUE(as_expected({{random({3, 2, 2, 3, 2, 5}, type).transpose(0, 4)}}));
    at::Tensor bad = random({33, 100}, type);
    bad[32][99] = kNan;
    EXPECT_TRUE(row_maxima({{bad}}).values.max().isnan().item<bool>());
  }
}

// More than a launch takes, of all types and sizes together.
TEST_F(RowMaximaKernel, TakesManyTensorsAtOnce) {
  for (const bool wide : {false, true}) {
    std::vector<TensorRows> tensors;
    for (std::int64_t i = 0; i < RowMaxima::kMost * 2 + 5; ++i) {
      const at::ScalarType type = kTypes[i % (wide ? 4 : 3)];
      const std::int64_t rows = 1 + i * 7 % 23;
      switch (i % 4) {
        case 0:
          tensors.push_back({random({1, rows, 4, 16}, type), 1});
          break;
        case 1:
          tensors.push_back({random({}, type)});
          break;
        case 2:
          tensors.push_back({random({1, 2, rows}, type), 2, /*positive=*/true});
          break;
        default:
          tensors.push_back({random({rows, 24}, type), 1});
      }
    }
    EXPECT_TRUE(as_expected(tensors));
    EXPECT_EQ(row_maxima(tensors).values.scalar_type(), wide ? at::kDouble : at::kFloat);
  }
}

TEST_F(RowMaximaKernel, IsReplayedByACudaGraph) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device: there are no graphs without one";
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  std::vector<TensorRows> tensors = {{random({1, 65, 4, 16}, at::kBFloat16), 1},
                                     {random({33, 3}, at::kFloat)},
                                     {random({2, 3, 2, 4, 5, 3}, at::kHalf).transpose(0, 5), 1}};
  (void)row_maxima(tensors);  // loads the kernel
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const at::Tensor values = row_maxima(tensors).values;
  graph.capture_end();
  graph.replay();
  EXPECT_TRUE(same(values, row_maxima(tensors).values));
  EXPECT_TRUE(values.isfinite().all().item<bool>());
  tensors[0].value[0][64][3][15] = kNan;
  tensors[1].value[0][0] = -kInf;
  tensors[2].value.fill_(100);
  graph.replay();
  EXPECT_TRUE(same(values, row_maxima(tensors).values));
  EXPECT_TRUE(values[64].isnan().item<bool>());
}

TEST_F(RowMaximaKernel, RefusesWhatItDoesNotServe) {
  EXPECT_FALSE(serves_row_maxima(at::zeros({0, 3}, at::TensorOptions(device()))));
  EXPECT_FALSE(serves_row_maxima(at::zeros({3}, at::TensorOptions(device()).dtype(at::kInt))));
  EXPECT_FALSE(serves_row_maxima(at::zeros({3}, at::TensorOptions(device()).dtype(at::kComplexFloat))));
  EXPECT_THROW((void)row_maxima({{at::zeros({0, 3}, at::TensorOptions(device()))}}), c10::Error);
  EXPECT_FALSE(row_maxima({}).values.defined());
}

}  // namespace row_maxima_test
}  // namespace suites::probes
