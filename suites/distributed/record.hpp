// What one rank of a run writes down of itself, as lines of JSON in a file of its own: each line at once, so that a
// rank that is killed leaves what it had said. No torch: the judgements of agreement.hpp and ends.hpp are made from
// these records alone.
//
//   {"at":"launched","rank":1,"size":2,"pid":4711,"clock_s":1.7e9,"shared_memory_bytes":67108864}
//   {"at":"step 3: backward"}
//   {"step":3,"loss":5.5,...}                    a step that was made (StepSeen)
//   {"error":"timeout","message":"...",...}      how it ended, where not well (RankError)
//   {"done":true,"figures":{...}}                the last line of a rank that ended well
//
// What is too large for a line (gradients, weights, chosen blocks) stands beside it in a file of tensors (rank.hpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reports/json.hpp"

namespace suites::distributed_ranks {

using reports::Json;

inline constexpr const char* kLooking = "looking for the others";  // a moment

// Of one parameter, in the order of registration.
struct ParameterSeen {
  std::string name;
  std::string bits;     // a hash of its bits after the step
  double own_norm = 0;  // of this rank's own share of the gradient, before it was reduced; 0 without one
  int arrivals = 0;     // how often a gradient arrived in the step's backward passes
  bool finite = true;   // its own share was finite
};

struct StepSeen {
  std::int64_t step = 0;  // 0, 1, ...
  double loss = 0, norm = 0, lr = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
  std::string stop = "none";      // StepReport::stop
  std::string anomaly;            // and what it said
  int culprit = -1;               // the rank that it names, of a value that is not finite
  std::vector<std::string> rows;  // a hash of each row that went through the model, in order
  std::vector<ParameterSeen> parameters;
  std::int64_t reduced_elements = 0;         // of gradients, in all collectives of the step
  double own_seconds = 0;                    // until it began to wait for others
  double reduction_s = 0, overlapped_s = 0;  // time of the gradients' reduction, and the part beside backward
};

// How a rank ended that did not end well, in its own words.
struct RankError {
  std::string kind;  // "timeout", "absent", "unreachable", "port_taken", "disagreement", "peer_died", "twice", "other"
  std::string message;
  Json details = Json::object();  // what the product's error holds: ranks, collective, sequence, facts, stacks
};

struct RankRecord {
  int rank = 0, size = 1;
  std::int64_t pid = 0;
  double clock_s = 0;                // its wall clock when it told the others of it
  double shared_memory_bytes = -1;   // free in /dev/shm; -1: unknown
  std::vector<std::string> moments;  // where it was, in order
  std::vector<StepSeen> steps;
  std::optional<RankError> error;
  bool done = false;
  Json figures = Json::object();  // bandwidth and the like

  [[nodiscard]] std::string last_moment() const { return moments.empty() ? "nowhere yet" : moments.back(); }
};

// Writes such a file, a line at a time. Throws std::runtime_error where it cannot.
class RecordWriter {
 public:
  RecordWriter(const std::filesystem::path& file, int rank, int size);
  void launched(double clock_s, double shared_memory_bytes);
  void at(const std::string& moment);
  void step(const StepSeen& seen);
  void error(const RankError& error);
  void done(const Json& figures);

 private:
  void line(const Json& line);
  std::filesystem::path file_;
  std::ofstream stream_;
  int rank_, size_;
};

// The record of rank `rank` of `size` from its file. A file that is not there is a rank that never wrote; a last line
// without its end is left out (it was being written). Throws std::runtime_error, naming file and line, for any other
// line that is none of these.
[[nodiscard]] RankRecord read_record(const std::filesystem::path& file, int rank, int size);

[[nodiscard]] Json to_json(const StepSeen& seen);
[[nodiscard]] StepSeen step_of(const Json& line);

}  // namespace suites::distributed_ranks
