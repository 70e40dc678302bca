#include "nsa/parts.hpp"

#include <algorithm>

namespace nsa {

void PartRecord::add(const PartTaken& taken) {
  const std::lock_guard lock(mutex_);
  const auto same = std::find_if(taken_.begin(), taken_.end(), [&](const PartTaken& known) {
    return known.part == taken.part && known.way == taken.way && known.why == taken.why && known.kernel == taken.kernel;
  });
  if (same != taken_.end())
    same->calls += taken.calls;
  else
    taken_.push_back(taken);
}

std::vector<PartTaken> PartRecord::taken() const {
  const std::lock_guard lock(mutex_);
  return taken_;
}

}  // namespace nsa
