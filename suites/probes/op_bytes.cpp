#include "suites/probes/op_bytes.hpp"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "suites/probes/op_tap.hpp"

namespace suites::probes {

namespace {

// The outermost operation that this thread is inside of.
thread_local std::string current_op;  // NOLINT: a callback has no other place that is per thread
thread_local int depth = 0;

// Told by the allocators of every device; shared with the threads of a backward pass, hence the lock.
class Reporter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* pointer, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    const std::lock_guard lock(mutex_);
    if (bytes > 0) {
      figures_.allocated += bytes;
      figures_.by_op[current_op].allocated += bytes;
      alive_ += bytes;
      sizes_[pointer] = bytes;
      figures_.peak = std::max(figures_.peak, alive_);
    } else if (const auto it = sizes_.find(pointer); it != sizes_.end()) {  // else: it was there before the scope
      alive_ -= it->second;
      sizes_.erase(it);
    }
  }
  [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }

  void count(bool outermost) {
    const std::lock_guard lock(mutex_);
    ++figures_.ops;
    if (outermost) ++figures_.by_op[current_op].calls;
  }
  void restart_peak() {
    const std::lock_guard lock(mutex_);
    figures_.peak = alive_;
  }
  [[nodiscard]] OpBytes figures() const {
    const std::lock_guard lock(mutex_);
    return figures_;
  }

 private:
  mutable std::mutex mutex_;
  OpBytes figures_;
  std::int64_t alive_ = 0;
  std::unordered_map<void*, std::int64_t> sizes_;
};

Reporter* reporter_of_this_thread() {
  return dynamic_cast<Reporter*>(
      static_cast<c10::MemoryReportingInfoBase*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE)));
}

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& op) {
  const bool outermost = depth++ == 0;
  if (outermost) current_op = op.name();
  if (Reporter* reporter = reporter_of_this_thread()) reporter->count(outermost);
  return nullptr;
}

void leave(const at::RecordFunction&, at::ObserverContext*) {
  if (--depth == 0) current_op.clear();
}

}  // namespace

reports::Json OpBytes::largest(std::size_t count) const {
  std::vector<std::pair<std::string, PerOp>> rows(by_op.begin(), by_op.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.allocated > b.second.allocated; });
  if (rows.size() > count) rows.resize(count);
  reports::Json json = reports::Json::array();
  for (const auto& [name, row] : rows) {
    json.push_back({{"op", name.empty() ? "(outside any)" : name}, {"calls", row.calls}, {"bytes", row.allocated}});
  }
  return json;
}

struct OpBytesScope::State {
  std::shared_ptr<Reporter> reporter = std::make_shared<Reporter>();
  std::optional<c10::DebugInfoGuard> guard;
  std::optional<OpTap> tap;
  bool running = true;
};

OpBytesScope::OpBytesScope() : state_(std::make_unique<State>()) {
  if (reporter_of_this_thread() != nullptr) throw std::logic_error("OpBytesScope inside another one");
  state_->guard.emplace(c10::DebugInfoKind::PROFILER_STATE, state_->reporter);
  state_->tap.emplace(OpTap::Of::this_thread, enter, leave);
}

OpBytesScope::~OpBytesScope() { stop(); }

OpBytes OpBytesScope::stop() {
  if (state_->running) {
    state_->running = false;
    state_->tap.reset();
    state_->guard.reset();
  }
  return state_->reporter->figures();
}

OpBytes OpBytesScope::so_far() const { return state_->reporter->figures(); }
void OpBytesScope::restart_peak() { state_->reporter->restart_peak(); }

OpBytes measure_bytes(const std::function<void()>& code) {
  OpBytesScope scope;
  code();
  return scope.stop();
}

}  // namespace suites::probes
