// A CTA has a chunk of one tensor, a thread eight neighbours of it at a time. Which tensor it is follows from the list of
// the chunks at which tensors begin, which comes with the kernel's arguments: no table must be written to the device,
// and a CUDA graph keeps it.
#include <limits>

#include "nsa/kernels/device/eight.cuh"
#include "nsa/kernels/update.hpp"

namespace nsa::kernels {

namespace {

constexpr int kUpdateThreads = 256, kRounds = 4;
constexpr std::int64_t kChunk = std::int64_t{kUpdateThreads} * kEight * kRounds;
constexpr int kMostTensors = 64;  // arguments of a kernel are 4 KiB at most
constexpr double kLargest = std::numeric_limits<double>::max();

struct UpdateList {
  UpdatedTensor tensors[kMostTensors];
  int begins[kMostTensors];  // the first chunk of each, in order
  int count = 0;
  Update p;
};
static_assert(sizeof(UpdateList) <= 4096);

// What the elements of a tensor have in common.
struct Numbers {
  float rate, beta1, beta2, epsilon, decay, step_size, root, factor;

  __device__ Numbers(const Update& p, float step)
      : rate(p.rate_there ? *p.rate_there : static_cast<float>(p.rate)),
        beta1(static_cast<float>(p.beta1)),
        beta2(static_cast<float>(p.beta2)),
        epsilon(static_cast<float>(p.epsilon)),
        decay(static_cast<float>(p.decay)),
        step_size(rate / (1 - powf(beta1, step))),
        root(sqrtf(1 - powf(beta2, step))),
        factor(1) {
    const double norm = p.norm_there ? static_cast<double>(*p.norm_there) : p.norm;
    if (norm > p.max_norm && norm <= kLargest) factor = static_cast<float>(p.max_norm / norm);
  }
};

__device__ void update_one(const Numbers& n, float g, float& weight, float& first, float& second) {
  weight -= n.rate * n.decay * weight;
  first = fmaf(n.beta1, first, fmaf(-n.beta1, g, g));
  second = fmaf(n.beta2, second, fmaf(-n.beta2, g * g, g * g));
  weight -= n.step_size * first / (sqrtf(second) / n.root + n.epsilon);
}

// A stored number of 16 bits as fp32, and back.
template <typename T>
__device__ float load_one(const void* from, std::int64_t i) {
  return static_cast<float>(static_cast<const T*>(from)[i]);
}
template <typename T>
__device__ float store_one(void* to, std::int64_t i, float x) {
  const T stored = T(x);
  static_cast<T*>(to)[i] = stored;
  return static_cast<float>(stored);
}

struct Eight {
  float x[kEight];
  __device__ explicit Eight(const float* from) {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  }
  __device__ void store(float* to) const {
    reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
  }
};

template <typename T>
__device__ void update_eight(const UpdatedTensor& t, const Numbers& n, std::int64_t at) {
  uint4 stored = *reinterpret_cast<const uint4*>(static_cast<const T*>(t.gradient) + at);
  Eight weight(t.weight + at), first(t.first + at), second(t.second + at);
  float g[kEight];
  widen<T>(g, stored);
  if (n.factor != 1) {
#pragma unroll
    for (int i = 0; i < kEight; ++i) g[i] *= n.factor;
    stored = narrowed<T>(g);
    store_whole(reinterpret_cast<uint4*>(static_cast<T*>(t.gradient) + at), stored);
    widen<T>(g, stored);
  }
#pragma unroll
  for (int i = 0; i < kEight; ++i) update_one(n, g[i], weight.x[i], first.x[i], second.x[i]);
  weight.store(t.weight + at);
  first.store(t.first + at);
  second.store(t.second + at);
  store<T>(reinterpret_cast<uint4*>(static_cast<T*>(t.parameter) + at), weight.x);
}

template <typename T>
__device__ void update_single(const UpdatedTensor& t, const Numbers& n, std::int64_t at) {
  float g = load_one<T>(t.gradient, at);
  if (n.factor != 1) g = store_one<T>(t.gradient, at, g * n.factor);
  float weight = t.weight[at], first = t.first[at], second = t.second[at];
  update_one(n, g, weight, first, second);
  t.weight[at] = weight;
  t.first[at] = first;
  t.second[at] = second;
  store_one<T>(t.parameter, at, weight);
}

__device__ bool begins_well(const UpdatedTensor& t) {
  return ((reinterpret_cast<std::uintptr_t>(t.parameter) | reinterpret_cast<std::uintptr_t>(t.gradient) |
           reinterpret_cast<std::uintptr_t>(t.weight) | reinterpret_cast<std::uintptr_t>(t.first) |
           reinterpret_cast<std::uintptr_t>(t.second)) %
          16) == 0;
}

template <typename T>
__global__ void __launch_bounds__(kUpdateThreads) update_kernel(const __grid_constant__ UpdateList list) {
  if (list.p.skip && *list.p.skip == 1) return;
  const int chunk = static_cast<int>(blockIdx.x);
  int which = 0;  // the last that begins at this chunk or before
  for (int step = 32; step > 0; step /= 2)
    if (which + step < list.count && list.begins[which + step] <= chunk) which += step;
  const UpdatedTensor& t = list.tensors[which];
  const Numbers numbers(list.p, *t.step);
  const bool whole = begins_well(t);
  const std::int64_t begin = (chunk - list.begins[which]) * kChunk + static_cast<std::int64_t>(threadIdx.x) * kEight;
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t at = begin + round * (std::int64_t{kUpdateThreads} * kEight);
    if (whole && at + kEight <= t.size) {
      update_eight<T>(t, numbers, at);
    } else {
      for (std::int64_t i = at; i < at + kEight && i < t.size; ++i) update_single<T>(t, numbers, i);
    }
  }
}
static_assert(kMostTensors <= 64, "the search for a tensor has six steps");

void launch_update(const UpdateList& list, int chunks, cudaStream_t stream) {
  auto* const kernel = list.p.storage == Storage::bf16 ? update_kernel<bf16> : update_kernel<fp16>;
  kernel<<<static_cast<unsigned>(chunks), kUpdateThreads, 0, stream>>>(list);
  check_launch("update");
}

}  // namespace

void update(std::span<const UpdatedTensor> tensors, const Update& p, cudaStream_t stream) {
  UpdateList list;
  list.p = p;
  std::int64_t chunks = 0;
  for (const UpdatedTensor& t : tensors) {
    if (t.size == 0) continue;
    list.begins[list.count] = static_cast<int>(chunks);
    list.tensors[list.count++] = t;
    chunks += (t.size + kChunk - 1) / kChunk;
    if (list.count < kMostTensors) continue;
    launch_update(list, static_cast<int>(chunks), stream);
    list.count = 0;
    chunks = 0;
  }
  if (list.count > 0) launch_update(list, static_cast<int>(chunks), stream);
}

}  // namespace nsa::kernels
