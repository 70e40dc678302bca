#include "nsa/bench/bench.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <benchmark/benchmark.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "nsa/bench/call.hpp"
#include "nsa/bench/timing.hpp"

namespace nsa::bench {

namespace {

struct Benchmark {
  CallSpec spec;  // its problem's S is the benchmark's argument
  bool graph = false;

  [[nodiscard]] std::string name() const {
    return fmt::format("{}/{}/{}/{}{}{}", spec.subject.name, to_string(spec.backend), spec.problem.config,
                       to_string(spec.mode), spec.subject.chooses ? fmt::format("/{}", to_string(spec.choice)) : "",
                       graph ? "/graph" : "");
  }
};

struct Surroundings {
  const Options& options;
  const Machine& machine;
  const Peers& peers;
  Tally& tally;
};

void compare(benchmark::State& state, const Peers& peers, const CallSpec& spec, double seconds) {
  const std::string& config = spec.problem.config;
  const std::int64_t S = spec.problem.S;
  const std::string mode(to_string(spec.mode));
  const std::string index = spec.subject.chooses ? std::string(to_string(spec.choice)) : "";
  const auto ratio = [seconds](const Peer& peer) { return 1e-3 * peer.ms / seconds; };
  if (const auto peer = peers.fastest({config, peer_of(spec.subject, config), mode, index, S})) {
    state.counters["vs_peer"] = ratio(*peer);
    state.SetLabel(fmt::format("peer: {:.3f} ms, {}", peer->ms, peer->implementation));
  }
  if (!spec.subject.whole) return;
  if (const auto dense = peers.fastest({config, kDense, mode, "", S})) state.counters["vs_dense"] = ratio(*dense);
}

Timing measure(const Benchmark& benchmark, const Surroundings& around, std::int64_t& peak) {
  const auto call = make_call(benchmark.spec, around.machine.device);
  const TimingPlan plan{.budget_s = 1e-3 * around.options.budget_ms};
  peak = peak_bytes(call);
  const Flush flush(around.machine.device);
  if (!benchmark.graph) return time_calls(call, flush, plan);
  Graph graph(call);
  return time_calls([&graph] { graph.replay(); }, flush, plan);
}

// One repetition, as one iteration whose time is the median of its calls.
void repetition(benchmark::State& state, const Benchmark& benchmark, const Surroundings& around) {
  const auto& [subject, problem, backend, mode, choice] = benchmark.spec;
  std::int64_t peak = 0;
  Timing timing = measure(benchmark, around, peak);
  if (subject.steps > 0) timing.median_s /= subject.steps, timing.host_s /= subject.steps;
  for (auto _ : state) {
    (void)_;
    state.SetIterationTime(timing.median_s);
  }
  state.counters["tflops"] = 1e-12 * work(subject, problem, mode).flops / timing.median_s;
  if (const auto peaks = peaks_of(around.options, around.machine))
    state.counters["roof_pct"] = 100 * roof_seconds(subject, problem, mode, *peaks) / timing.median_s;
  state.counters["peak_mib"] = static_cast<double>(peak) / (1 << 20);
  state.counters["host_us"] = 1e6 * timing.host_s;
  state.counters["calls"] = timing.calls;
  if (around.peers.measured_on(around.machine.gpu)) compare(state, around.peers, benchmark.spec, timing.median_s);
  ++around.tally.measured;
}

void skip(benchmark::State& state, const std::string& reason) {
  state.SetLabel(reason);
  state.SkipWithError(reason.c_str());  // which also says it on the console
}

void run(benchmark::State& state, const Benchmark& registered, const Surroundings& around) {
  Benchmark benchmark = registered;
  CallSpec& spec = benchmark.spec;
  spec.problem.S = state.range(0);
  const auto reason = refusal(spec.subject, spec.backend, spec.problem, spec.mode, around.machine.capability);
  if (!reason.empty()) {
    ++around.tally.skipped;
    skip(state, "skipped: " + reason);
    return;
  }
  try {
    repetition(state, benchmark, around);
  } catch (const c10::OutOfMemoryError& error) {
    ++around.tally.skipped;
    const std::string text = error.what_without_backtrace();
    skip(state, "skipped: " + text.substr(0, text.find(". GPU ")));  // the rest is advice
  } catch (const c10::Error& error) {
    ++around.tally.failed;
    skip(state, fmt::format("failed: {}", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    ++around.tally.failed;
    skip(state, fmt::format("failed: {}", error.what()));
  }
  c10::cuda::CUDACachingAllocator::emptyCache();  // a benchmark does not find the pieces of the one before
}

void add(const Benchmark& benchmark, const Surroundings& around) {
  auto* registered = benchmark::RegisterBenchmark(benchmark.name().c_str(),
                                                  [=](benchmark::State& state) { run(state, benchmark, around); });
  registered->ArgName("S")->Iterations(1)->UseManualTime()->Unit(benchmark::kMillisecond);
  for (const std::int64_t S : around.options.lengths) registered->Arg(S);
}

// The variants of one subject in one config.
void add_variants(const Subject& subject, const std::string& config, const Surroundings& around) {
  const Options& options = around.options;
  for (const Backend backend : options.backends)
    for (const Mode mode : {Mode::fwd, Mode::fwd_bwd}) {
      if (mode == Mode::fwd_bwd && !subject.differentiable) continue;
      Benchmark benchmark{{subject, problem(config, 1), backend, mode, ChoiceKind::random}};
      if (!subject.chooses) {
        add(benchmark, around);
      } else {
        for (const ChoiceKind choice : options.choices) {
          benchmark.spec.choice = choice;
          add(benchmark, around);
        }
      }
      // cuda promises to wait for nothing.
      benchmark.graph = (subject.whole || subject.steps > 0) && backend == Backend::cuda;
      if (benchmark.graph) add(benchmark, around);
    }
}

}  // namespace

std::optional<Peaks> peaks_of(const Options& options, const Machine& machine) {
  if (options.peak_flops && options.peak_bytes) return Peaks{*options.peak_flops, *options.peak_bytes};
  return measured_peaks(machine.gpu);
}

void register_benchmarks(const Options& options, const Machine& machine, const Peers& peers, Tally& tally) {
  const Surroundings around{options, machine, peers, tally};
  for (const std::string& config : options.configs)
    for (const Subject& subject : subjects())
      if (applies(subject, config)) add_variants(subject, config, around);
}

}  // namespace nsa::bench
