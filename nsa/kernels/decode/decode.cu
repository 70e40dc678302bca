#include "nsa/kernels/decode/finish.cuh"
#include "nsa/kernels/decode/parts.cuh"

namespace nsa::kernels {

namespace {

template <typename T, int Dk, int Dv>
void launch_decode(const Decode& p, const DecodePlan& plan, cudaStream_t stream) {
  const DecodeCuts& cuts = plan.cuts;
  const DecodeWork work(p, cuts);
  const auto pairs = static_cast<unsigned>(p.B * p.G);
  const auto first = decode_parts_kernel<T, Dk, Dv>;
  cudaFuncSetAttribute(first, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_first);
  first<<<dim3(static_cast<unsigned>(cuts.known()), pairs), kDecodeThreads, plan.shared_first, stream>>>(p, cuts, work);
  check_launch("decode_parts");
  const DecodeShared at = second_shared(p, cuts);
  const auto second = decode_finish_kernel<T, Dk, Dv>;
  cudaFuncSetAttribute(second, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_second);
  launch(plan.variant == DecodeVariant::early_second, second, dim3(static_cast<unsigned>(cuts.finishing()), pairs),
         kDecodeThreads, plan.shared_second, stream, p, cuts, work, at);
  check_launch("decode_finish");
}

template <typename T>
void launch_width(const Decode& p, const DecodePlan& plan, cudaStream_t stream) {
  switch (p.Dk) {
    case 32:
      return launch_decode<T, 32, 32>(p, plan, stream);
    case 64:
      return launch_decode<T, 64, 64>(p, plan, stream);
    case 128:
      return launch_decode<T, 128, 128>(p, plan, stream);
    default:
      return launch_decode<T, 192, 128>(p, plan, stream);
  }
}

}  // namespace

void decode(const Decode& given, const DecodePlan& plan, cudaStream_t stream) {
  if (plan.launches == 0) return;
  Decode p = given;
  p.scale *= kLog2E;  // the kernels' powers are of two
  if (p.storage == Storage::bf16)
    launch_width<bf16>(p, plan, stream);
  else
    launch_width<fp16>(p, plan, stream);
}

}  // namespace nsa::kernels
