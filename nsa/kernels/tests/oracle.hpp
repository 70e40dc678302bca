// The attention kernels, emulated (nsa/kernels/tests/emulation), forward and backward, against sums in fp64.
#pragma once

#include <string>
#include <vector>

#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/tensors.hpp"

namespace nsa::kernels {

// What a test does with a problem.
struct Call {
  Mask mask = Mask::window;
  bool hopper = true, forward_alone = false;
  bool again = false;     // the backward pass once more, in another order: the same bits
  bool adds = false;      // and once more with dQ added to numbers that stand there: the sums, to the bit
  bool combines = false;  // the forward pass once more with the gated sum: both as by themselves, to the bit
  Limits limits = emulation::kLowLimits;
};
struct Problem {
  int B = 1, S = 100, h = 3, G = 2;
  Geometry geometry{16, 8, 32, 4, 50};
  std::vector<int> boundaries = {};  // a packed batch; S is then the last
  Storage storage = Storage::fp16;
  Tensor::Order order = Tensor::Order::tokens_outside;
  int room = 0;                      // of the tensors' rows
  int empty = 16;                    // selected: one row of the table in so many names no block
  int alike_from = 1 << 30;          // from this token on most rows are as the one before
  std::vector<int> ways = {};        // that the device must find for the chunks (selected/ways.hpp)
  int nan_key = -1, nan_value = -1;  // K, V of this key are NaN
  int nan_gradient = -1;             // dO of this token is NaN; then dV is not looked at, whose tiles share it
  double size = 1;                   // of Q and K; with others than 1 statistics are not looked at
  // What the test says.
  int Dk = 64, Dv = 64;
  Call call = {};
};

// Runs the call on random inputs with NaN around them. Empty, or what is wrong: results, statistics, writes beyond the
// outputs or the workspace, the ways that the device found, other kernels than were planned.
[[nodiscard]] std::string differences(Problem x);

}  // namespace nsa::kernels
