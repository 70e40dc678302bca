// heartbeat.jsonl: what a run does, one JSON object a line, for programs that watch it. Every record has
//
//   ts (Unix seconds), iso, pid, run, event, step (made so far), phase (what is going on), rss_bytes and, on a GPU,
//   gpu_allocated_bytes, gpu_reserved_bytes
//
// and by event: boot, resume (from_step, file), progress (loss, lr, grad_norm, tok_per_s, step_s, fetch_p50_ms,
// fetch_p95_ms, tokens, seconds, gate_*, strict_fallbacks), validation, checkpoint (file, bytes, seconds), beat
// (nothing new, but alive), slow, hung (stacks), strict_fallback (op), anomaly, halted, signal, end_of_data, error,
// finished. Numbers that are not finite are the words "NaN", "Infinity" and "-Infinity", as in the reports of
// nsa-validate.
#pragma once

#include <nlohmann/json.hpp>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <mutex>
#include <string>

#include "nsa/train/files.hpp"
#include "nsa/train/run/activity.hpp"

namespace nsa::train {

[[nodiscard]] nlohmann::json json_number(double value);         // the words where JSON has no number
[[nodiscard]] nlohmann::json memory_in_use(at::Device device);  // rss_bytes, gpu_allocated_bytes, gpu_reserved_bytes

// Thread-safe.
class Heartbeat {
 public:
  struct Source {
    std::string run_id;
    at::Device device = at::kCPU;
    const Activity& activity;
  };
  Heartbeat(const std::filesystem::path& file, Source source) : file_(file), source_(std::move(source)) {}
  // Throws FileError.
  void write(std::string_view event, const nlohmann::json& fields = nlohmann::json::object());
  void check();  // throws FileLost

 private:
  std::mutex mutex_;
  AppendFile file_;
  Source source_;
};

}  // namespace nsa::train
