#include "nsa/train/run/heartbeat.hpp"

#include <c10/cuda/CUDACachingAllocator.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>

namespace nsa::train {

namespace {

std::int64_t resident_bytes() {
  std::ifstream stream("/proc/self/statm");
  std::int64_t pages = 0, resident = 0;
  stream >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

std::string iso(std::chrono::system_clock::time_point time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z", fmt::gmtime(static_cast<std::time_t>(ms / 1000)), ms % 1000);
}

}  // namespace

std::string timestamp() { return iso(std::chrono::system_clock::now()); }

nlohmann::json json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

nlohmann::json memory_in_use(at::Device device) {
  nlohmann::json memory = {{"rss_bytes", resident_bytes()}};
  if (!device.is_cuda()) return memory;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  memory["gpu_allocated_bytes"] = stats.allocated_bytes[all].current;
  memory["gpu_allocated_peak_bytes"] = stats.allocated_bytes[all].peak;
  memory["gpu_reserved_bytes"] = stats.reserved_bytes[all].current;
  return memory;
}

void Heartbeat::write(std::string_view event, const nlohmann::json& fields) {
  const auto now = std::chrono::system_clock::now();
  const Activity::Snapshot activity = source_.activity.look();
  nlohmann::json record = {{"ts", std::chrono::duration<double>(now.time_since_epoch()).count()},
                           {"iso", iso(now)},
                           {"pid", ::getpid()},
                           {"run", source_.run_id},
                           {"event", event},
                           {"step", activity.steps},
                           {"phase", activity.phase}};
  record.update(memory_in_use(source_.device));
  record.update(fields);
  const std::lock_guard<std::mutex> lock(mutex_);
  file_.append(record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void Heartbeat::check() {
  const std::lock_guard<std::mutex> lock(mutex_);
  file_.check();
}

}  // namespace nsa::train
