#include "nsa/bench/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "build_info.hpp"

namespace nsa::bench {

namespace {

constexpr const char* kFooter = R"(
Lists are cut at commas; what is not said is everything, with lengths of 2048, 4096, ... 65536.

Google Benchmark's options: --benchmark_filter=REGEX, --benchmark_list_tests, --benchmark_repetitions=N (3 here),
--benchmark_out=FILE, --benchmark_out_format=json|csv|console, --benchmark_format=..., --benchmark_context=KEY=VALUE,
--benchmark_display_aggregates_only=false (true here), and the others; always with '='.

Names are SUBJECT/BACKEND/CONFIG/MODE[/CHOICE][/graph]/S:LENGTH; what the numbers mean: nsa/bench/README.md.

Exit codes: 0 measured, 1 a benchmark failed, 2 usage, 3 nothing was measured, 4 no usable GPU or lost output, 10 internal error.)";

// Options that Google Benchmark may know; whether it does is seen when it reads them.
bool is_for_benchmark(const std::string& argument) {
  return argument.starts_with("--benchmark_") || argument.starts_with("--v=");
}

bool asks_for_list(const std::string& argument) {
  constexpr std::string_view kList = "--benchmark_list_tests";
  if (!argument.starts_with(kList)) return false;
  const std::string value = argument.substr(kList.size());
  return value != "=false" && value != "=0" && value != "=no" && value != "=off";
}

using Names = std::vector<std::string>;

template <typename Value>
CLI::Option* list(CLI::App& app, const char* option, std::vector<Value>& values, const std::string& meaning) {
  return app.add_option(option, values, meaning)->delimiter(',')->allow_extra_args(false);
}

// What names stand for; the names were checked.
template <typename Value>
std::vector<Value> values_of(const Names& names, const std::map<std::string, Value>& meanings) {
  std::vector<Value> values;
  for (const auto& name : names) values.push_back(meanings.at(name));
  return values;
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app("Times the functions of Native Sparse Attention on a GPU.", "nsa-bench");
  app.footer(kFooter);
  app.set_version_flag("--version", fmt::format("nsa-bench {} (build {})", build_info::kVersion, build_info::kBuildId));
  app.allow_extras();
  list(app, "--config", options.configs, "a (12 heads in 2 groups, 64), b (64 in 4, 192/128), c (64 in 4, 128)")
      ->check(CLI::IsMember({"a", "b", "c", "d"}));
  std::map<std::string, Backend> backends;
  Names backend_names;
  for (const Backend backend : kAllBackends) {
    if (backend == Backend::reference) continue;  // slow on purpose
    backends.emplace(to_string(backend), backend);
    backend_names.emplace_back(to_string(backend));
  }
  list(app, "--backend", backend_names, fmt::format("{}", fmt::join(backend_names, ", ")))
      ->check(CLI::IsMember(backend_names));
  list(app, "--length", options.lengths, "S, tokens")->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  const std::map<std::string, ChoiceKind> choices = {{"random", ChoiceKind::random}, {"drift", ChoiceKind::drift}};
  Names choice_names = {"random", "drift"};
  list(app, "--choice", choice_names,
       "blocks for the selected branch: random, or drift (neighbouring queries share most)")
      ->check(CLI::IsMember(choice_names));
  app.add_option("--peers", options.peers, "CSV of other implementations' times (fixtures/bench/peers_h200.csv)")
      ->check(CLI::ExistingFile);
  auto* flops = app.add_option("--peak-flops", options.peak_flops, "FLOP/s of the roofline (known: NVIDIA H200)")
                    ->check(CLI::PositiveNumber);
  app.add_option("--peak-bytes", options.peak_bytes, "bytes/s of the roofline (known: NVIDIA H200)")
      ->check(CLI::PositiveNumber)
      ->needs(flops);
  flops->needs("--peak-bytes");
  app.add_option("--budget-ms", options.budget_ms, "time for the calls of one repetition, of which the median is taken")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    (void)app.exit(asked);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("{} (nsa-bench --help)", error.what()));
  }
  options.backends = values_of(backend_names, backends);
  options.choices = values_of(choice_names, choices);
  options.benchmark_arguments = app.remaining();
  for (const auto& argument : options.benchmark_arguments)
    if (!is_for_benchmark(argument))
      throw UsageError(fmt::format("'{}' is not an option of nsa-bench (nsa-bench --help)", argument));
  options.list_only =
      std::any_of(options.benchmark_arguments.begin(), options.benchmark_arguments.end(), asks_for_list);
  return options;
}

}  // namespace nsa::bench
