// The machine's load while a case runs: since it began, and since its last phase, because what disturbs a timing at the
// end of a long case does not show in the average.
#pragma once

#include <chrono>
#include <functional>

#include "base/load.hpp"
#include "reports/json.hpp"

namespace harness {

// Starts to measure; what it returns tells the load since then.
using LoadReader = std::function<base::Load()>;
using LoadSource = std::function<LoadReader()>;
[[nodiscard]] LoadReader measure_load();  // of this machine

[[nodiscard]] reports::Json to_json(const base::Load& load);

class LoadWatch {
 public:
  explicit LoadWatch(LoadSource source);
  void phase();  // a new part of the case begins; cheap
  // Since the case began; where only its last phase was disturbed, since that.
  [[nodiscard]] base::Load look() const;

 private:
  using Clock = std::chrono::steady_clock;
  LoadSource source_;
  LoadReader whole_, part_;
  Clock::time_point part_begin_;
  [[nodiscard]] bool part_is_long_enough() const;
};

}  // namespace harness
