// What supervisor and worker say to each other. The order goes to the worker's standard input as one JSON object; what
// comes back are JSON lines on descriptor Process::kEventFd:
//   hello {pid} · case_begin {case, seed} · phase, progress, metric, check, fact, artifact, finding {case, ...}
//   · retry {case, reason}, at most once: what was measured counts no more, and it is measured anew
//   · case_end {case, status: pass | error | skip | crash, reason_code, reason} · bye · device {probe} (mode probe)
// A finding carries code, message, evidence and optionally a severity; the supervisor adds the rest from the code table
// and decides whether the case has failed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/program.hpp"

namespace harness {

inline constexpr const char* kWorkerVerb = "__worker";
inline constexpr std::size_t kMaxLine = 1 << 20;  // bytes of one event, newline included

struct WorkOrder {
  bool probe = false;  // probe the device and leave; nothing below but `supervisor` counts
  pid_t supervisor = 0;
  int worker = 0;
  std::string suite;
  std::vector<std::string> cases;  // ids, in order
  std::vector<std::string> faults;
  std::uint64_t seed = 0;
  bool cuda = false;
  std::filesystem::path folder;
  std::string run_id;
  Json settings = Json::array();  // [key, text, origin] of every setting that is not at its default
  Json provenance = Json::object();
};

[[nodiscard]] std::string to_text(const WorkOrder& order);
[[nodiscard]] WorkOrder parse_order(const std::string& text);  // throws UsageError

// Where a worker writes the stacks of its threads, when it dies or is asked (base/stacks.hpp).
[[nodiscard]] std::filesystem::path stacks_file(const WorkOrder& order);
// Where a worker says for whom it waits (waits_for() in worker.hpp): some bytes, with a 0 behind them. The supervisor
// reads it when the worker is gone, which may have been too sudden for a word, and deletes it.
[[nodiscard]] std::filesystem::path waiting_file(const WorkOrder& order);
inline constexpr std::size_t kMaxWaiting = 256;  // bytes of it, the 0 included

[[nodiscard]] Json changed_settings(const Settings& settings);
void apply_settings(Settings& settings, const Json& changed);

// The harness's own settings and the program's.
[[nodiscard]] std::vector<SettingSpec> all_setting_specs(const Program& program);

// The worker did not keep to the protocol.
class ProtocolViolation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Splits a stream into lines. Throws ProtocolViolation for a line longer than kMaxLine.
class LineReader {
 public:
  void feed(std::string_view bytes);
  [[nodiscard]] bool next(std::string& line);                                   // false: no whole line left
  [[nodiscard]] std::string partial() const { return buffer_.substr(begin_); }  // after next() returned false

 private:
  std::string buffer_;
  std::size_t begin_ = 0, scanned_ = 0;
};

}  // namespace harness
