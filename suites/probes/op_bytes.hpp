// How much memory a piece of code newly allocates and how many ATen operations it dispatches, on the CPU and on CUDA.
// The figures come from torch's own allocators and dispatcher, so they hold whatever the code under test says of
// itself. Unlike times they do not scatter.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "reports/json.hpp"

namespace suites::probes {

struct OpBytes {
  std::int64_t allocated = 0;  // sum of all new allocations, freed since or not
  std::int64_t peak = 0;       // most that was alive at once, of what was allocated inside
  std::int64_t ops = 0;        // operations dispatched, nested ones included
  struct PerOp {
    std::int64_t calls = 0, allocated = 0;
  };
  // By outermost operation ("aten::matmul"); what is allocated outside any operation stands under "".
  std::map<std::string, PerOp> by_op;

  // The `count` operations that allocated most, largest first: evidence for a reader.
  [[nodiscard]] reports::Json largest(std::size_t count = 5) const;
};

// Measures what this thread does, and the autograd threads that work for it, from construction to stop(). CUDA sizes
// are those that the caching allocator hands out (multiples of 512 bytes). Scopes do not nest (std::logic_error).
class OpBytesScope {
 public:
  OpBytesScope();
  ~OpBytesScope();
  OpBytesScope(const OpBytesScope&) = delete;
  OpBytesScope& operator=(const OpBytesScope&) = delete;
  // Ends the measurement; a second call returns the same figures.
  OpBytes stop();
  [[nodiscard]] OpBytes so_far() const;
  // What is alive now becomes the peak: from here on the peak of what follows is told.
  void restart_peak();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[nodiscard]] OpBytes measure_bytes(const std::function<void()>& code);

}  // namespace suites::probes
