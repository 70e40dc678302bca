#include "suites/probes/op_trace.hpp"

#include <mutex>
#include <stdexcept>
#include <utility>

#include "suites/probes/op_tap.hpp"

namespace suites::probes {

namespace {

// RecordFunction takes plain functions, so what they write to cannot travel with them.
std::mutex mutex;
bool tracing = false;
std::map<std::string, OpCounts> counts;
thread_local std::string section;

std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
  std::string name = function.name();
  if (const auto op = function.operator_name(); op && !op->overload_name.empty()) name += "." + op->overload_name;
  const std::lock_guard lock(mutex);
  if (tracing) ++counts[section][name];
  return nullptr;
}

}  // namespace

OpTrace::OpTrace() {
  {
    const std::lock_guard lock(mutex);
    if (std::exchange(tracing, true)) throw std::logic_error("OpTrace: another trace of this process still lives");
    counts.clear();
  }
  tap_ = std::make_unique<OpTap>(OpTap::Of::all_threads, count, nullptr);
}

OpTrace::~OpTrace() {
  tap_.reset();
  const std::lock_guard lock(mutex);
  tracing = false;
}

OpTrace::Section::Section(std::string name) : outer_(std::exchange(section, std::move(name))) {}
OpTrace::Section::~Section() { section = std::move(outer_); }

std::map<std::string, OpCounts> OpTrace::by_section() const {
  const std::lock_guard lock(mutex);
  return counts;
}

OpCounts OpTrace::all() const {
  OpCounts sum;
  for (const auto& [name, ops] : by_section()) {
    for (const auto& [op, times] : ops) sum[op] += times;
  }
  return sum;
}

}  // namespace suites::probes
