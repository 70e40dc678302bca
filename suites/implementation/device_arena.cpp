#include "suites/implementation/device_arena.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

namespace suites::implementation {

namespace {

// An error that stayed noted would be taken for that of the next kernel.
void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  throw std::runtime_error(fmt::format("{}: {}", what, cudaGetErrorString(error)));
}

std::string hex(const char* bytes, std::size_t count) {
  return fmt::format("{:02x}", fmt::join(std::span(reinterpret_cast<const unsigned char*>(bytes), count), ""));
}

DeviceMemory::Block allocate(at::Device device, std::int64_t bytes) {
  const c10::cuda::CUDAGuard guard(device);
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<std::size_t>(bytes)), "cudaMalloc");
  // Nobody is left to be told of an error here: after a fault of the GPU, or at the end of the program, every call
  // fails and the driver has the memory back anyhow.
  std::shared_ptr<char> own(static_cast<char*>(memory), [](char* all) {
    if (cudaFree(all) != cudaSuccess) (void)cudaGetLastError();
  });
  cudaIpcMemHandle_t handle{};
  check(cudaIpcGetMemHandle(&handle, memory), "cudaIpcGetMemHandle");
  cudaDeviceProp gpu{};
  check(cudaGetDeviceProperties(&gpu, device.index()), "cudaGetDeviceProperties");
  return {
      std::move(own),
      {{"handle", hex(handle.reserved, sizeof handle.reserved)}, {"gpu", hex(gpu.uuid.bytes, sizeof gpu.uuid.bytes)}}};
}

}  // namespace

DeviceMemory cuda_memory() {
  return {at::kCUDA, allocate, [](at::Device device) { at::cuda::getCurrentCUDAStream(device.index()).synchronize(); }};
}

bool DeviceArena::reserve(at::Device device, std::int64_t bytes) {
  used_ = 0;
  if (size_ > 0 && device == device_ && bytes <= size_) return false;
  const std::int64_t size = std::max({kGrain, rounded_up(bytes, kGrain), 2 * size_});
  old_ = std::exchange(block_, memory_.allocate(device, size));
  device_ = device;
  size_ = size;
  return true;
}

void DeviceArena::release() {
  block_ = old_ = {};
  size_ = used_ = 0;
}

Json DeviceArena::opened_by() const {
  Json json = {{"size", size_}};
  json.update(block_.opened_by);
  return json;
}

at::Tensor DeviceArena::view(const Place& place) const {
  // The device is said, because nobody can ask CUDA for that of an empty tensor at the very end.
  return at::for_blob(block_.bytes.get() + place.at, place.shape)
      .options(at::TensorOptions(place.dtype).device(device_))
      .target_device(device_)
      .make_tensor();
}

Place DeviceArena::put(const at::Tensor& tensor) {
  Place place = place_for(tensor, used_);
  place.on_device = true;
  const std::int64_t end = used_ + rounded_up(static_cast<std::int64_t>(tensor.nbytes()), kStep);
  if (end > size_) throw std::logic_error("a tensor for which no room was reserved in the GPU's arena");
  used_ = end;
  const at::NoGradGuard no_grad;
  view(place).copy_(tensor);
  return place;
}

at::Tensor DeviceArena::take(const Place& place) const {
  (void)bytes_inside(place, size_, kStep);
  return view(place).clone();
}

}  // namespace suites::implementation
