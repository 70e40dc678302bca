#include "nsa/kernels/hopper/tensor_map.hpp"

#include <algorithm>
#include <string>

namespace nsa::kernels::hopper {
namespace {

// Found at run time, so that nothing links against the driver's library: a machine without a GPU has none.
auto encoder() {
  static const auto function = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) address = nullptr;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(address);
  }();
  return function;
}

}  // namespace

CUtensorMap tensor_map(const Rows& rows, Storage storage, int B, int N, int G, int D, int tile) {
  constexpr int kBytes = 2, kSlab = 64, kRank = 5;
  const auto size = [](int x) { return static_cast<cuuint64_t>(x); };
  // A dimension of one has no stride of its own, whatever the caller's says (0 is refused).
  const auto stride = [](std::int64_t elements) {
    return static_cast<cuuint64_t>(std::max<std::int64_t>(elements * kBytes, 16));
  };
  const cuuint64_t sizes[kRank] = {kSlab, size(N), size(D / kSlab), size(G), size(B)};
  const cuuint64_t strides[kRank - 1] = {stride(rows.token), kSlab * kBytes, stride(rows.head), stride(rows.batch)};
  const cuuint32_t box[kRank] = {kSlab, static_cast<cuuint32_t>(tile), static_cast<cuuint32_t>(D / kSlab), 1, 1};
  const cuuint32_t every[kRank] = {1, 1, 1, 1, 1};
  const auto type = storage == Storage::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap map{};
  const auto encode = encoder();
  if (!encode) throw LaunchError("attention_forward_hopper: the driver has no cuTensorMapEncodeTiled");
  const CUresult result =
      encode(&map, type, kRank, rows.data, sizes, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw LaunchError("attention_forward_hopper: cuTensorMapEncodeTiled refused with " + std::to_string(result));
  return map;
}

}  // namespace nsa::kernels::hopper
