#include "nsa/parts.hpp"

#include <algorithm>

namespace nsa {

void PartRecord::count(std::string_view part, std::string_view way, std::string_view why) {
  const std::lock_guard lock(mutex_);
  const auto same = std::find_if(taken_.begin(), taken_.end(), [&](const PartTaken& known) {
    return known.part == part && known.way == way && known.why == why;
  });
  if (same != taken_.end())
    ++same->calls;
  else
    taken_.push_back({std::string(part), std::string(way), std::string(why), 1});
}

std::vector<PartTaken> PartRecord::taken() const {
  const std::lock_guard lock(mutex_);
  return taken_;
}

}  // namespace nsa
