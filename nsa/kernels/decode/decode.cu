#include "nsa/kernels/decode/attend.cuh"
#include "nsa/kernels/decode/join.cuh"
#include "nsa/kernels/decode/scores.cuh"
#include "nsa/kernels/device/early.cuh"

namespace nsa::kernels {

namespace {

template <typename T, int Dk, int Dv>
void launch_decode(const Decode& p, const DecodePlan& plan, cudaStream_t stream) {
  const DecodeCuts& cuts = plan.cuts;
  const DecodeWork work(p, cuts);
  const DecodeShared at = attend_shared(p, cuts);
  const bool early = plan.variant == DecodeVariant::early, chooses = cuts.chosen > 0;
  const auto G = static_cast<unsigned>(p.G), B = static_cast<unsigned>(p.B);
  if (chooses) {
    const auto scores = decode_scores_kernel<T, Dk, Dv>;
    cudaFuncSetAttribute(scores, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.scores_bytes);
    launch(early, scores, dim3(static_cast<unsigned>(cuts.compressed), G, B), kDecodeThreads, plan.scores_bytes, stream,
           p, cuts, work);
    check_launch("decode_scores");
    const int shares = (cuts.current - 2 + kDecodeQuads - 1) / kDecodeQuads;
    launch(early, decode_totals_kernel, dim3(static_cast<unsigned>(shares), G, B), kDecodeThreads, 0, stream, p, cuts,
           work);
    check_launch("decode_totals");
  }
  const auto attend = decode_attend_kernel<T, Dk, Dv>;
  cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.attend_bytes);
  launch(early && chooses, attend, dim3(G, B, static_cast<unsigned>(cuts.parts())), kDecodeThreads, plan.attend_bytes,
         stream, p, cuts, work, at);
  check_launch("decode_attend");
  const auto join = decode_join_kernel<T, Dv>;
  launch(early, join, dim3(static_cast<unsigned>(p.Hq / p.G), G, B), kDecodeThreads, plan.join_bytes, stream, p, cuts,
         work);
  check_launch("decode_join");
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
