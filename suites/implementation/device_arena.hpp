// Memory of a GPU that this process shares with the one that serves an adapter: there tensors cross without leaving the
// GPU. It is allocated here and opened there (CUDA IPC); what becomes of the other process does not harm it.
//
// Filled from the front, emptied as a whole. It grows by becoming other memory, which the other side has to
// open. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "suites/implementation/place.hpp"

namespace suites::implementation {

// Where the memory comes from.
struct DeviceMemory {
  struct Block {
    std::shared_ptr<char> bytes;  // frees them
    Json opened_by;               // what the other process opens them by
  };
  at::DeviceType type = at::kCUDA;
  // Throws std::runtime_error: there is no such memory, or it cannot be shared.
  std::function<Block(at::Device, std::int64_t)> allocate;
  std::function<void(at::Device)> wait;  // until what the current stream was given is done
};

// CUDA's own allocations rather than torch's, which hold several tensors each: another process opens a whole one.
// opened_by is {"handle": the 64 bytes of cudaIpcGetMemHandle in hex, "gpu": the GPU's uuid in hex}.
[[nodiscard]] DeviceMemory cuda_memory();

class DeviceArena {
 public:
  static constexpr std::int64_t kStep = 256;  // bytes: places are multiples of it
  // Bytes: its size is a multiple of them. CUDA lays smaller allocations beside others into one block, and would share
  // the whole block.
  static constexpr std::int64_t kGrain = 2 << 20;

  explicit DeviceArena(DeviceMemory memory) : memory_(std::move(memory)) {}  // allocates nothing yet

  [[nodiscard]] at::DeviceType type() const { return memory_.type; }
  [[nodiscard]] std::int64_t size() const { return size_; }  // bytes; 0: nothing is allocated
  [[nodiscard]] std::int64_t room() const { return used_; }  // the first byte that is free, a multiple of kStep

  // Empties it and makes room for `bytes`. true: it is other memory than before, for the other side to open. What was
  // there before stays until forget_old(), because memory must not be freed while another process has it open. Throws
  // std::runtime_error; it is as before then.
  bool reserve(at::Device device, std::int64_t bytes);
  void forget_old() { old_ = {}; }
  void reset() { used_ = 0; }
  void release();  // all of it; the other side has closed it, or is gone

  // {"size": bytes} and DeviceMemory's opened_by.
  [[nodiscard]] Json opened_by() const;

  // A copy of the values, of any strides and device, on the current stream. Throws ImplementationError "request" for a
  // tensor that is undefined or of a type that does not cross, std::logic_error where no room was reserved.
  Place put(const at::Tensor& tensor);
  // A tensor of its own, on the device, on the current stream. Throws ImplementationError "protocol" for a place that
  // is not wholly inside.
  [[nodiscard]] at::Tensor take(const Place& place) const;
  // Until all copies are done: the other process knows nothing of our streams.
  void wait() const { memory_.wait(device_); }

 private:
  [[nodiscard]] at::Tensor view(const Place& place) const;

  DeviceMemory memory_;
  DeviceMemory::Block block_, old_;
  at::Device device_ = at::kCPU;
  std::int64_t size_ = 0, used_ = 0;
};

}  // namespace suites::implementation
