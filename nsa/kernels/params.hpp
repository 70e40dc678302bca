// What every kernel family is given: plain structs, no LibTorch. Pointers are to device memory; nothing here owns any.
// A launch function puts its kernels on the stream and returns; it never waits for the device and allocates nothing.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>

namespace nsa::kernels {

enum class Storage { bf16, fp16 };  // of q, k, v, o and their gradients; every accumulation is fp32

// A [B, S, H, D] tensor: D contiguous, strides in elements. `data` and every stride are multiples of 16 bytes.
struct Rows {
  void* data = nullptr;
  std::int64_t batch = 0, token = 0, head = 0;
};

struct Geometry {
  int l = 32, d = 16, l_sel = 64, n = 16, w = 512;
};

// A packed batch (B = 1): for every token the first token of its document, and the first compressed block of its
// document. Null: one document a batch entry, both 0.
struct Packed {
  const int* first_token = nullptr;  // [S]
  const int* first_block = nullptr;  // [S]
};

// The CUDA runtime refused a launch; says which kernel and why.
class LaunchError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// Throws LaunchError when the last launch was refused (cudaPeekAtLastError; does not wait for the kernel).
void check_launch(const char* kernel);

// Whether these are not the kernels but their emulation (tests/emulation/README.md), which works on the
// CPU's memory.
[[nodiscard]] bool is_emulated();

}  // namespace nsa::kernels
