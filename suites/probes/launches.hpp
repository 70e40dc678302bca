// What the host hands to the device: operations that compute, and points at which the host waits for the device. Both
// are counted from ATen's own dispatch (RecordFunction), on every thread, autograd's included, so that they can be
// counted on a machine without a GPU as well. Counts do not scatter as times do.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "reports/json.hpp"

namespace suites::probes {

struct OpCount {
  // Innermost operations that compute: no views, no empty tensors, nothing that only reads sizes. On a GPU each of them
  // launches at least one kernel; how many there are in truth only a trace says (gpu_trace.hpp).
  std::int64_t ops = 0;
  // Operations for which the host waits until the device has finished: item() and nonzero() of a tensor on `device`,
  // copies between devices. On the CPU nothing waits; what is counted there would wait on a GPU.
  std::int64_t host_syncs = 0;
  std::map<std::string, std::int64_t> by_op, syncs_by_op;

  // The `count` operations with the most calls, most first.
  [[nodiscard]] reports::Json most_frequent(std::size_t count = 8) const;
};

// Not reentrant: std::logic_error inside another count of this process.
[[nodiscard]] OpCount count_ops(at::Device device, const std::function<void()>& code);

// How counts grow with the length: (after - before) / added, in operations per added row. `grown` lists the operations
// that grew most. A loop over rows on the host adds at least one operation a row; whole-tensor code adds a few for each
// chunk of hundreds.
struct Growth {
  double ops_per_row = 0, syncs_per_row = 0;
  reports::Json grown;
};
[[nodiscard]] Growth growth_per_row(const OpCount& shorter, const OpCount& longer, double added_rows);

}  // namespace suites::probes
