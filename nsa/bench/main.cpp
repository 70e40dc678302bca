#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <cstdlib>

#include "base/streams.hpp"
#include "build_info.hpp"
#include "nsa/bench/bench.hpp"
#include "nsa/flags.hpp"

namespace {

using namespace nsa::bench;
namespace fs = std::filesystem;

int leave(ExitCode code, const std::string& message) {
  base::complain(message, "nsa-bench: ");
  return static_cast<int>(code);
}

// What is timed is named on the command line, whatever the flags say: a set one is not in force, well spelt or not.
void warn_of_flags() {
  for (const auto& [name, value] : nsa::read_environment())
    base::tell(
        fmt::format("nsa-bench: warning: {} is set and means nothing here (--backend says what is timed)", name));
}

// Google Benchmark prints its help and ends with 0 when a value is wrong; this is called in place of the printing.
void refuse_value() {
  std::exit(leave(ExitCode::usage,
                  "--benchmark_format and --benchmark_out_format must be console, json or csv (nsa-bench --help)"));
}

// What this program sets unless the command line says otherwise, then the command line's.
void initialise(const Options& options) {
  // Static: the library keeps a pointer to the first word and writes it into its reports.
  static std::vector<std::string> words = {"nsa-bench", "--benchmark_repetitions=3",
                                           "--benchmark_counters_tabular=true",
                                           "--benchmark_display_aggregates_only=true"};
  words.insert(words.end(), options.benchmark_arguments.begin(), options.benchmark_arguments.end());
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int count = static_cast<int>(words.size());
  benchmark::Initialize(&count, arguments.data(), refuse_value);
  if (count > 1)
    throw UsageError(
        fmt::format("'{}' is not an option of Google Benchmark, or its value does not fit "
                    "(nsa-bench --help)",
                    arguments[1]));
}

// Beside the sources, or where they were installed to.
fs::path default_peers() {
  const fs::path name = "fixtures/bench/peers_h200.csv";
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = program.parent_path() / ".." / "share" / "nsa-validate" / name;
  return fs::exists(installed) ? installed : fs::path(build_info::kSourceDir) / name;
}

void tell_context(const Options& options, const Machine& machine, const Peers& peers, const fs::path& peers_file) {
  for (const auto& [key, value] : machine.facts) benchmark::AddCustomContext(key, value);
  const auto peaks = peaks_of(options, machine);
  benchmark::AddCustomContext(
      "roofline",
      peaks ? fmt::format("{:.4g} TFLOP/s, {:.4g} TB/s", 1e-12 * peaks->flops_per_s, 1e-12 * peaks->bytes_per_s)
            : fmt::format("none: the peaks of a {} are not known (--peak-flops, --peak-bytes)", machine.gpu));
  benchmark::AddCustomContext(
      "peers", fmt::format("{}: {}{}", peers_file.string(),
                           peers.measured_on(machine.gpu) ? "" : "not compared, this is a " + machine.gpu + ": ",
                           peers.origin()));
  benchmark::AddCustomContext("budget_ms", fmt::format("{}", options.budget_ms));
  benchmark::AddCustomContext("lengths", fmt::format("{}", fmt::join(options.lengths, ",")));
}

int run(const Options& options) {
  initialise(options);
  const fs::path peers_file = options.peers.empty() ? default_peers() : options.peers;
  const Peers peers = Peers::read(peers_file);
  Machine machine;
  if (!options.list_only) {
    machine = find_machine();
    tell_context(options, machine, peers, peers_file);
  }
  Tally tally;
  register_benchmarks(options, machine, peers, tally);
  const std::size_t matched = benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  if (matched > 0 && options.list_only) return static_cast<int>(ExitCode::measured);
  if (tally.failed > 0) return leave(ExitCode::failed, fmt::format("{} repetition(s) failed", tally.failed));
  if (matched == 0) return leave(ExitCode::nothing, "no name matches the filter (--benchmark_list_tests shows all)");
  if (tally.measured == 0) return leave(ExitCode::nothing, "everything was skipped");
  return static_cast<int>(ExitCode::measured);
}

int guarded(int argc, char** argv) {
  try {
    const auto options = parse_options(argc, argv);
    return options ? run(*options) : static_cast<int>(ExitCode::measured);
  } catch (const UsageError& error) {
    return leave(ExitCode::usage, error.what());
  } catch (const PeersInvalid& error) {
    return leave(ExitCode::usage, error.what());
  } catch (const NoGpu& error) {
    return leave(ExitCode::infrastructure,
                 fmt::format("no usable GPU, and this program only measures GPUs: {}", error.what()));
  } catch (const std::exception& error) {
    return leave(ExitCode::internal, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  base::guard_streams();
  warn_of_flags();
  const int code = guarded(argc, argv);
  if (code != static_cast<int>(ExitCode::measured)) return code;
  if (const auto why = base::lost(stdout))
    return leave(ExitCode::infrastructure, fmt::format("standard output cannot be written: {}", *why));
  return base::lost(stderr) ? static_cast<int>(ExitCode::infrastructure) : code;  // told on standard output
}
