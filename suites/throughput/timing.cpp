#include "suites/throughput/timing.hpp"

#include <benchmark/benchmark.h>
#include <torch/cuda.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <sstream>

namespace suites::throughput_cases {

namespace {

// Keeps every repeat and prints nothing.
class Collector : public benchmark::BenchmarkReporter {
 public:
  Collector() {
    SetOutputStream(&sink_);
    SetErrorStream(&sink_);
  }
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type == Run::RT_Iteration && run.iterations > 0) {
        seconds.push_back(run.real_accumulated_time / static_cast<double>(run.iterations));
      }
    }
  }
  std::vector<double> seconds;

 private:
  std::ostringstream sink_;
};

// The library reads BENCHMARK_* variables; these arguments win over those that would write files or change the order.
void initialise_once() {
  static const bool done = [] {
    std::array<char, 32> program{"nsa-validate"}, out{"--benchmark_out="};
    std::array<char, 48> order{"--benchmark_enable_random_interleaving=false"}, list{"--benchmark_list_tests=false"};
    std::array<char*, 5> arguments = {program.data(), out.data(), order.data(), list.data(), nullptr};
    int count = 4;
    benchmark::Initialize(&count, arguments.data());
    return true;
  }();
  (void)done;
}

}  // namespace

void synchronise(at::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

double time_once(const Stopwatch& stopwatch, const std::function<void()>& work) {
  synchronise(stopwatch.device);
  const double begin = stopwatch.clock();
  work();
  synchronise(stopwatch.device);
  return stopwatch.clock() - begin;
}

Abba time_abba(const Stopwatch& stopwatch, int blocks, const std::function<void()>& a, const std::function<void()>& b) {
  Abba times;
  const auto one = [&](const std::function<void()>& work, std::vector<double>& samples) {
    samples.push_back(time_once(stopwatch, work));
    times.in_order.push_back(samples.back());
  };
  for (int block = 0; block < blocks; ++block) {
    const bool a_outside = block % 2 == 0;
    const auto& outer = a_outside ? a : b;
    const auto& inner = a_outside ? b : a;
    auto &outer_samples = a_outside ? times.a : times.b, &inner_samples = a_outside ? times.b : times.a;
    one(outer, outer_samples);
    one(inner, inner_samples);
    one(inner, inner_samples);
    one(outer, outer_samples);
  }
  return times;
}

std::vector<double> time_repeats(const std::string& name, const Stopwatch& stopwatch, const TimingPlan& plan,
                                 const std::function<void()>& work) {
  double last = 0;
  for (int i = 0; i < std::max(1, plan.warm_up); ++i) last = time_once(stopwatch, work);
  const auto affordable = [last](double seconds) { return std::floor(seconds / std::max(last, 1e-9)); };
  const double least = std::clamp<double>(affordable(plan.patience_s), 1, plan.least);
  const int repeats =
      static_cast<int>(std::clamp<double>(affordable(plan.budget_s), least, std::max(plan.least, plan.repeats)));

  initialise_once();
  benchmark::ClearRegisteredBenchmarks();
  std::exception_ptr failure;  // the library is not made for exceptions: they pass round it
  const auto body = [&](benchmark::State& state) {
    for (auto _ : state) {
      (void)_;
      if (failure) continue;
      try {
        state.SetIterationTime(time_once(stopwatch, work));
      } catch (...) {
        failure = std::current_exception();
      }
    }
  };
  benchmark::RegisterBenchmark("timing", body)->Iterations(1)->Repetitions(repeats)->UseManualTime();
  Collector collector;
  benchmark::RunSpecifiedBenchmarks(&collector, "all");
  benchmark::ClearRegisteredBenchmarks();
  if (failure) std::rethrow_exception(failure);
  if (collector.seconds.size() != static_cast<std::size_t>(repeats)) {
    throw std::runtime_error(name + ": Google Benchmark returned " + std::to_string(collector.seconds.size()) +
                             " samples instead of " + std::to_string(repeats));
  }
  return collector.seconds;
}

}  // namespace suites::throughput_cases
