#include "nsa/train/run/heartbeat.hpp"

#include <c10/cuda/CUDACachingAllocator.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>

#include "base/json_number.hpp"
#include "base/proc.hpp"
#include "base/stamp.hpp"

namespace nsa::train {

nlohmann::json json_number(double value) { return base::json_number<nlohmann::json>(value); }

nlohmann::json memory_in_use(at::Device device) {
  nlohmann::json memory = {{"rss_bytes", base::resident_bytes().value_or(0)}};
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
                           {"iso", base::timestamp(now)},
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
