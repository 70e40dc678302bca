#include "nsa/parallel/ring.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace nsa::parallel {

std::string describe(const CollectiveRecord& record) {
  return record.dtype.empty()
             ? fmt::format("{} '{}'", record.sequence, record.name)
             : fmt::format("{} '{}' ({} x {})", record.sequence, record.name, record.elements, record.dtype);
}

std::uint64_t Ring::begin(std::string_view name, std::int64_t elements, std::string dtype, double now_s) {
  Entry oldest;  // goes after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.push_back({{{next_, std::string(name), elements, std::move(dtype), now_s, -1}}});
  if (kept_.size() > kKept) {
    oldest = std::move(kept_.front());
    kept_.pop_front();
  }
  return next_++;
}

void Ring::waits(std::uint64_t sequence, bool does) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Entry& one : kept_)
    if (one.record.sequence == sequence) one.sent = does;
}

void Ring::end(std::uint64_t sequence, double now_s) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Entry& one : kept_)
    if (one.record.sequence == sequence) one.record.ended_s = now_s;
}

void Ring::ends_when(std::uint64_t sequence, std::function<bool()> done) {
  const auto asked = std::make_shared<const std::function<bool()>>(std::move(done));
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Entry& one : kept_)
    if (one.record.sequence == sequence) one.done = asked;
}

void Ring::look(double now_s) {
  // Asked, and let go, without the lock: both are calls of the GPU's driver.
  std::vector<std::pair<std::uint64_t, std::shared_ptr<const std::function<bool()>>>> asked;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Entry& one : kept_)
      if (one.done) asked.emplace_back(one.record.sequence, one.done);
  }
  for (const auto& [sequence, done] : asked) {
    if (!(*done)()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (frozen_) return;
    for (Entry& one : kept_) {
      if (one.record.sequence != sequence || !one.done) continue;
      one.done = nullptr;  // `asked` has it still
      one.record.ended_s = now_s;
    }
  }
}

void Ring::freeze() {
  const std::lock_guard<std::mutex> lock(mutex_);
  frozen_ = true;
}

std::vector<CollectiveRecord> Ring::all() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<CollectiveRecord> records;
  records.reserve(kept_.size());
  for (const Entry& one : kept_) records.push_back(one.record);
  return records;
}

std::optional<Ring::Open> Ring::open() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(kept_.begin(), kept_.end(), [](const Entry& one) { return one.record.ended_s < 0; });
  return found == kept_.end() ? std::nullopt : std::optional<Open>(static_cast<const Open&>(*found));
}

std::optional<CollectiveRecord> Ring::last() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return kept_.empty() ? std::nullopt : std::optional<CollectiveRecord>(kept_.back().record);
}

}  // namespace nsa::parallel
