#include "suites/probes/row_maxima.hpp"

#include <ATen/ATen.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <limits>

#include "nsa/cuda/stream.hpp"
#include "nsa/kernels/params.hpp"
#include "suites/probes/row_maxima_kernel.hpp"

namespace suites::probes {

namespace {

struct Dim {
  std::int64_t size, stride;
};
using Dims = c10::SmallVector<Dim, 5>;

RowMaxima::Type type_of(at::ScalarType type) {
  if (type == at::kBFloat16) return RowMaxima::Type::bf16;
  if (type == at::kHalf) return RowMaxima::Type::fp16;
  return type == at::kFloat ? RowMaxima::Type::fp32 : RowMaxima::Type::fp64;
}

// Innermost first, each two joined of which one goes on where the other ends. A maximum asks neither for an order nor
// how often a number stands there, so that dimensions are sorted and those of stride 0 left out.
Dims joined(const Dims& sorted) {
  Dims dims;
  for (const Dim& dim : sorted) {
    if (!dims.empty() && dims.back().stride * dims.back().size == dim.stride)
      dims.back().size *= dim.size;
    else
      dims.push_back(dim);
  }
  if (dims.empty()) dims.push_back({1, 1});
  return dims;
}

// A tensor's rows and what each is made of. Where no dimension is to be kept the slowest one is, so that there are many
// warps for a large tensor.
struct Layout {
  Dim rows{1, 0};
  Dims dims;

  Layout(const at::Tensor& t, std::int64_t row) {
    Dims sorted;
    for (std::int64_t i = 0; i < t.dim(); ++i) {
      if (i == row)
        rows = {t.size(i), t.stride(i)};
      else if (t.size(i) > 1 && t.stride(i) != 0)
        sorted.push_back({t.size(i), t.stride(i)});
    }
    std::sort(sorted.begin(), sorted.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
    if (row < 0 && sorted.size() > 1) rows = sorted.pop_back_val();
    if (rows.size == 1) rows.stride = 0;
    dims = joined(sorted);
  }

  // Whether 16 bytes can be read at once everywhere.
  [[nodiscard]] bool whole(const at::Tensor& t) const {
    const auto fits = [&](std::int64_t elements) { return elements * t.element_size() % RowMaxima::kPiece == 0; };
    return reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % RowMaxima::kPiece == 0 && dims[0].stride == 1 &&
           fits(dims[0].size) && fits(rows.stride) &&
           std::all_of(dims.begin() + 1, dims.end(), [&](const Dim& dim) { return fits(dim.stride); });
  }
};

RowMaxima::Tensor parameters_of(const at::Tensor& t, const Layout& layout, bool positive) {
  const std::int64_t element = t.element_size();
  RowMaxima::Tensor p;
  p.data = t.const_data_ptr();
  p.type = type_of(t.scalar_type());
  p.positive = positive;
  p.rows = static_cast<std::uint32_t>(layout.rows.size);
  p.row_stride = layout.rows.stride * element;
  p.dims = static_cast<std::uint8_t>(layout.dims.size());
  for (std::size_t i = 0; i < layout.dims.size(); ++i) {
    p.sizes[i] = static_cast<std::uint32_t>(layout.dims[i].size);
    p.strides[i] = layout.dims[i].stride * element;
  }
  p.whole = !positive && layout.whole(t);
  if (p.whole) {
    p.sizes[0] = static_cast<std::uint32_t>(layout.dims[0].size * element / RowMaxima::kPiece);
    p.strides[0] = RowMaxima::kPiece;
  }
  return p;
}

}  // namespace

bool serves_row_maxima(const at::Tensor& value) {
  const auto type = value.scalar_type();
  return (value.is_cuda() || nsa::kernels::is_emulated()) && value.layout() == at::kStrided &&
         (type == at::kBFloat16 || type == at::kHalf || type == at::kFloat || type == at::kDouble) &&
         value.numel() > 0 && value.numel() <= std::numeric_limits<std::int32_t>::max();
}

RowMaximaOf row_maxima(const std::vector<TensorRows>& tensors) {
  RowMaximaOf result;
  if (tensors.empty()) return result;
  std::vector<at::Tensor> copies;  // live until the launch
  std::vector<RowMaxima::Tensor> all;
  bool wide = false;
  std::int64_t rows = 0;
  for (const auto& [value, row, positive] : tensors) {
    TORCH_CHECK(serves_row_maxima(value), "row_maxima: does not serve ", value.toString(), " ", value.sizes());
    at::Tensor t = value;
    Layout layout(t, row);
    if (layout.dims.size() > RowMaxima::kDims) {  // more than five dimensions that nothing joins
      copies.push_back(t = t.contiguous());
      layout = Layout(t, row);
    }
    all.push_back(parameters_of(t, layout, positive));
    wide = wide || t.scalar_type() == at::kDouble;
    result.ends.push_back(rows += layout.rows.size);
  }
  const nsa::cuda::OnDeviceOf device(tensors.front().value);
  result.values = at::empty({rows}, tensors.front().value.options().dtype(wide ? at::kDouble : at::kFloat));
  for (std::size_t first = 0; first < all.size(); first += RowMaxima::kMost) {
    RowMaxima p;
    p.largest = result.values.data_ptr();
    p.wide = wide;
    for (std::size_t i = first; i < std::min(all.size(), first + RowMaxima::kMost); ++i) {
      RowMaxima::Tensor& t = p.tensors[p.count++] = all[i];
      t.first_block = p.blocks;
      t.first_row = static_cast<std::uint32_t>(i == 0 ? 0 : result.ends[i - 1]);
      p.blocks += (t.rows + RowMaxima::kRowsOfABlock - 1) / RowMaxima::kRowsOfABlock;
    }
    launch_row_maxima(p, device.stream());
  }
  return result;
}

}  // namespace suites::probes
