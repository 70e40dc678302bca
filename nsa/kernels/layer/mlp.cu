#include "nsa/kernels/mlp.hpp"

#include <algorithm>
#include <limits>

#include "nsa/kernels/device/shared.hpp"
#include "nsa/kernels/device/tensor_map.hpp"
#include "nsa/kernels/layer/sm90_mlp.cuh"
#include "nsa/kernels/plan/device.hpp"

namespace nsa::kernels {

namespace {

using Shape = hopper::ProductShape;

std::int64_t tiles_of(std::int64_t rows, std::int64_t columns) {
  return (rows + Shape::kRows - 1) / Shape::kRows * ((columns + Shape::kColumns - 1) / Shape::kColumns);
}

// Of a matrix [rows][columns], whose boxes are so many rows of 64 columns.
CUtensorMap matrix_map(const void* data, Storage storage, int rows, int columns, int box) {
  return hopper::rows_map({const_cast<void*>(data), 0, columns, 0}, storage, 1, rows, 1, columns, 1, box);
}

template <typename T, bool Transposed, typename Result, typename Parameters>
void launch(const Parameters& p, const CUtensorMap& a, const CUtensorMap& b, const Device& device,
            cudaStream_t stream) {
  const auto kernel = hopper::silu_product_kernel<T, Transposed, Result, Parameters>;
  if (grant_shared(kernel, Shape::kSharedBytes) == cudaSuccess) {
    const auto ctas = static_cast<unsigned>(std::min<std::int64_t>(tiles_of(p.rows, p.wide), device.sm_count));
    kernel<<<dim3(ctas), Shape::kThreads, Shape::kSharedBytes, stream>>>(p, a, b);
  }
  check_launch("silu_product");
}

}  // namespace

std::string silu_product_refusal(std::int64_t rows, std::int64_t inner, std::int64_t wide, const Device& device) {
  if (!device.hopper) return "the device or the build has no wgmma; served: compute capability 9.0";
  if (inner <= 0 || wide <= 0 || inner % Shape::kDepth != 0 || wide % Shape::kDepth != 0)
    return "widths " + std::to_string(inner) + " and " + std::to_string(wide) + "; served: multiples of 64";
  // Not the number: the record of what ran has an entry for every reason.
  const int share = device.limits.sms_a_silu_tile;
  const std::int64_t wanted = (device.sm_count + share - 1) / share, across = tiles_of(1, wide),
                     down = (wanted + across - 1) / across;
  if (const std::int64_t fewest = (down - 1) * Shape::kRows + 1; rows < fewest)
    return "fewer than " + std::to_string(fewest) + " rows; served: a tile of 192 rows and 256 columns for one SM in " +
           std::to_string(share);
  if (rows > std::numeric_limits<int>::max() || tiles_of(rows, wide) >= std::int64_t{1} << 30)
    return "2^31 rows or 2^30 tiles, or more";
  return "";
}

void silu_product(const SiluProduct& p, const Device& device, cudaStream_t stream) {
  const auto x = matrix_map(p.x, p.storage, p.rows, p.inner, Shape::kRows);
  const auto w = matrix_map(p.w, p.storage, p.wide, p.inner, Shape::kColumns);
  if (p.storage == Storage::bf16)
    launch<bf16, true, hopper::SiluResult<bf16>>(p, x, w, device, stream);
  else
    launch<fp16, true, hopper::SiluResult<fp16>>(p, x, w, device, stream);
}

void silu_product_backward(const SiluProductBackward& p, const Device& device, cudaStream_t stream) {
  const auto dy = matrix_map(p.dy, p.storage, p.rows, p.inner, Shape::kRows);
  const auto w = matrix_map(p.w, p.storage, p.inner, p.wide, Shape::kDepth);
  if (p.storage == Storage::bf16)
    launch<bf16, false, hopper::SiluDerivativeResult<bf16>>(p, dy, w, device, stream);
  else
    launch<fp16, false, hopper::SiluDerivativeResult<fp16>>(p, dy, w, device, stream);
}

}  // namespace nsa::kernels
