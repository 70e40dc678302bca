// The command line of nsa-bench: its own options, and Google Benchmark's, which are handed on.
#pragma once

#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "nsa/bench/choice.hpp"
#include "nsa/bench/problem.hpp"

namespace nsa::bench {

// As nsa-validate's, where the same thing happened.
enum class ExitCode {
  measured = 0,
  failed = 1,          // a benchmark threw something
  usage = 2,           // command line, or the file of peers
  nothing = 3,         // nothing was measured: no name matches the filter, or everything was skipped
  infrastructure = 4,  // no GPU, or output that cannot be written
  internal = 10,
};

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Options {
  std::vector<std::string> configs = {"a", "b", "c", "d"};
  std::vector<Backend> backends;  // all of them unless said otherwise
  std::vector<std::int64_t> lengths = {2048, 4096, 8192, 16384, 32768, 65536};
  std::vector<ChoiceKind> choices;  // likewise
  std::filesystem::path peers;      // empty: fixtures/bench/peers_h200.csv
  // Of the roofline; absent: those measured on a GPU of this name, or no roofline.
  std::optional<double> peak_flops, peak_bytes;
  double budget_ms = 200;                        // of a repetition
  std::vector<std::string> benchmark_arguments;  // --benchmark_...
  bool list_only = false;                        // --benchmark_list_tests: needs no GPU
};

// Nothing when --help or --version was answered. Throws UsageError.
[[nodiscard]] std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace nsa::bench
