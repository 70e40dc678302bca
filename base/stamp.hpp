// Moments and runs as the files of every program name them.
#pragma once

#include <chrono>
#include <string>

namespace base {

// "2026-01-31T23:59:59.123Z"
[[nodiscard]] std::string timestamp(std::chrono::system_clock::time_point time = std::chrono::system_clock::now());

// "20260131T235959Z-9f3c": when the run begins, and four digits by chance, for two in one second.
[[nodiscard]] std::string new_run_id();

}  // namespace base
