// A CTA has a chunk of one tensor. Which tensor it is follows from the list of the chunks at which tensors begin, which
// comes with the kernel's arguments: no table must be written to the device, and a CUDA graph keeps it.
//
// The update's threads have four neighbours at a time: of fp32 that is 16 bytes, so that each access of a warp covers
// whole sectors of 32 bytes. With eight neighbours a thread every store would cover half of each, at 1.2 TB/s of
// memory. Of the norm's 16-bit data a thread has eight.
#include <limits>
#include <type_traits>

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

constexpr int kQuad = 4;

struct Quad {
  float x[kQuad];
  __device__ explicit Quad(const float* from) {
    const float4 all = *reinterpret_cast<const float4*>(from);
    x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
  }
  __device__ void store(float* to) const { *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]); }
};

template <typename T>
__device__ void widen(float (&x)[kQuad], const uint2& raw) {
  const float2 low = unpack<T>(raw.x), high = unpack<T>(raw.y);
  x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
}
template <typename T>
__device__ uint2 narrowed(const float (&x)[kQuad]) {
  return make_uint2(pack<T>(x[0], x[1]), pack<T>(x[2], x[3]));
}

// What a thread reads of four parameters; all of a chunk's is asked for before any of it is used.
struct Read {
  uint2 gradient;
  Quad weight, first, second;

  __device__ Read(const UpdatedTensor& t, std::int64_t at)
      : gradient(*reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(t.gradient) + at)),
        weight(t.weight + at),
        first(t.first + at),
        second(t.second + at) {}
};

template <typename T>
__device__ void update_quad(const UpdatedTensor& t, const Numbers& n, std::int64_t at, Read& r) {
  float g[kQuad];
  widen<T>(g, r.gradient);
  if (n.factor != 1) {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) g[i] *= n.factor;
    const uint2 stored = narrowed<T>(g);
    *reinterpret_cast<uint2*>(static_cast<T*>(t.gradient) + at) = stored;
    widen<T>(g, stored);
  }
#pragma unroll
  for (int i = 0; i < kQuad; ++i) update_one(n, g[i], r.weight.x[i], r.first.x[i], r.second.x[i]);
  r.weight.store(t.weight + at);
  r.first.store(t.first + at);
  r.second.store(t.second + at);
  *reinterpret_cast<uint2*>(static_cast<T*>(t.parameter) + at) = narrowed<T>(r.weight.x);
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

// The last tensor of a list that begins at this chunk or before: by halves, since its places are in the arguments.
template <int Most>
__device__ int tensor_of(const int (&begins)[Most], int count, int chunk) {
  int which = 0;
#pragma unroll
  for (int step = Most / 2; step > 0; step /= 2)
    if (which + step < count && begins[which + step] <= chunk) which += step;
  return which;
}

template <typename T>
__global__ void __launch_bounds__(kUpdateThreads) update_kernel(const __grid_constant__ UpdateList list) {
  if (list.p.skip && *list.p.skip == 1) return;
  const int chunk = static_cast<int>(blockIdx.x);
  const int which = tensor_of(list.begins, list.count, chunk);
  const UpdatedTensor& t = list.tensors[which];
  const Numbers numbers(list.p, *t.step);
  const bool whole = begins_well(t);
  const std::int64_t begin = (chunk - list.begins[which]) * kChunk;
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    constexpr std::int64_t kStride = std::int64_t{kUpdateThreads} * kQuad;
    const std::int64_t at = begin + 2 * round * kStride + static_cast<std::int64_t>(threadIdx.x) * kQuad;
    if (whole && at + kStride + kQuad <= t.size) {
      Read low(t, at), high(t, at + kStride);
      update_quad<T>(t, numbers, at, low);
      update_quad<T>(t, numbers, at + kStride, high);
    } else {
      for (const std::int64_t quad : {at, at + kStride})
        for (std::int64_t i = quad; i < quad + kQuad && i < t.size; ++i) update_single<T>(t, numbers, i);
    }
  }
}
void launch_update(const UpdateList& list, int chunks, cudaStream_t stream) {
  auto* const kernel = list.p.storage == Storage::bf16 ? update_kernel<bf16> : update_kernel<fp16>;
  kernel<<<static_cast<unsigned>(chunks), kUpdateThreads, 0, stream>>>(list);
  check_launch("update");
}

// ---- the norm

constexpr int kMostStored = 128, kAdders = 1024, kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffU;

struct StoredList {
  StoredTensor tensors[kMostStored];
  int begins[kMostStored];
  int count = 0;
  float* parts = nullptr;  // of this list's chunks
};
static_assert(sizeof(StoredList) <= 4096);

// Over a CTA, in its first thread.
template <typename Sum, int Threads>
__device__ Sum cta_sum(Sum x) {
  __shared__ Sum of_warps[Threads / kWarp];
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  if (threadIdx.x > 0) return x;
  x = 0;
  for (int warp = 0; warp < Threads / kWarp; ++warp) x += of_warps[warp];
  return x;
}

template <typename T>
__global__ void __launch_bounds__(kUpdateThreads) squares_kernel(const __grid_constant__ StoredList list) {
  const int chunk = static_cast<int>(blockIdx.x);
  const int which = tensor_of(list.begins, list.count, chunk);
  const StoredTensor& t = list.tensors[which];
  const T* const data = static_cast<const T*>(t.data);
  const bool whole = reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  const std::int64_t begin = (chunk - list.begins[which]) * kChunk + static_cast<std::int64_t>(threadIdx.x) * kEight;
  float sum = 0;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t at = begin + round * (std::int64_t{kUpdateThreads} * kEight);
    if (whole && at + kEight <= t.size) {
      float x[kEight];
      load<T>(x, reinterpret_cast<const uint4*>(data + at));
#pragma unroll
      for (int i = 0; i < kEight; ++i) sum = fmaf(x[i], x[i], sum);
    } else {
      for (std::int64_t i = at; i < at + kEight && i < t.size; ++i) {
        const float x = load_one<T>(data, i);
        sum = fmaf(x, x, sum);
      }
    }
  }
  sum = cta_sum<float, kUpdateThreads>(sum);
  if (threadIdx.x == 0) list.parts[chunk] = sum;
}

__global__ void __launch_bounds__(kAdders) root_kernel(const float* parts, int count, float* norm) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kAdders) sum += static_cast<double>(parts[i]);
  sum = cta_sum<double, kAdders>(sum);
  if (threadIdx.x == 0) *norm = static_cast<float>(sqrt(sum));
}

std::int64_t chunks_of(std::int64_t size) { return (size + kChunk - 1) / kChunk; }

// Lists that are full, and the last one, to launch(list, chunks).
template <typename List, typename Tensors, typename Launch>
void in_lists(List& list, const Tensors& tensors, const Launch& launch_list) {
  constexpr int kMost = static_cast<int>(std::extent_v<decltype(List::begins)>);
  std::int64_t chunks = 0;
  const auto send = [&] {
    if (list.count > 0) launch_list(list, static_cast<int>(chunks));
    list.count = 0;
    chunks = 0;
  };
  for (const auto& t : tensors) {
    if (t.size == 0) continue;
    list.begins[list.count] = static_cast<int>(chunks);
    list.tensors[list.count++] = t;
    chunks += chunks_of(t.size);
    if (list.count == kMost) send();
  }
  send();
}

}  // namespace

void update(std::span<const UpdatedTensor> tensors, const Update& p, cudaStream_t stream) {
  UpdateList list;
  list.p = p;
  in_lists(list, tensors, [&](const UpdateList& full, int chunks) { launch_update(full, chunks, stream); });
}

std::int64_t norm_parts(std::span<const StoredTensor> tensors) {
  std::int64_t chunks = 0;
  for (const StoredTensor& t : tensors) chunks += chunks_of(t.size);
  return chunks;
}

void norm_of(std::span<const StoredTensor> tensors, Storage storage, float* parts, float* norm, cudaStream_t stream) {
  auto* const kernel = storage == Storage::bf16 ? squares_kernel<bf16> : squares_kernel<fp16>;
  StoredList list;
  list.parts = parts;
  in_lists(list, tensors, [&](const StoredList& full, int chunks) {
    kernel<<<static_cast<unsigned>(chunks), kUpdateThreads, 0, stream>>>(full);
    check_launch("squares");
    list.parts += chunks;
  });
  root_kernel<<<1, kAdders, 0, stream>>>(parts, static_cast<int>(list.parts - parts), norm);
  check_launch("norm_of");
}

}  // namespace nsa::kernels
