// Case data_loading: how long does a batch take to come, from each kind of source, and what share of a training step is
// spent waiting for it?
#include "suites/throughput/data_loading.hpp"

#include <fmt/format.h>

#include <numeric>

#include "nsa/train/prefetch.hpp"
#include "nsa/train/stream.hpp"
#include "suites/codes.hpp"
#include "suites/throughput/cases.hpp"
#include "suites/throughput/timing.hpp"

namespace suites::throughput_cases {

using harness::Context;
using harness::Json;

Json Fetches::to_json() const {
  return {{"first_ms", reports::number(1e3 * first_s)},
          {"p50_ms", reports::number(1e3 * probes::quantile(seconds, 0.50))},
          {"p95_ms", reports::number(1e3 * probes::quantile(seconds, 0.95))},
          {"p99_ms", reports::number(1e3 * probes::quantile(seconds, 0.99))},
          {"fetches", seconds.size()}};
}

Fetches fetch(Context& context, const nsa::train::BatchSource& source, int count) {
  Fetches fetches;
  for (int i = 0; i <= count; ++i) {
    at::Tensor tokens;
    const double seconds = time_once(at::kCPU, [&] { tokens = source(); });
    if (!tokens.defined() || tokens.numel() == 0)
      throw std::runtime_error(fmt::format("data_loading: the source ended after {} batches", i));
    if (i == 0) {
      fetches.first_s = seconds;
    } else {
      fetches.seconds.push_back(seconds);
    }
    context.progress();
  }
  return fetches;
}

double Waiting::percent() const {
  return 100 * std::accumulate(fetch_s.begin(), fetch_s.end(), 0.0) /
         std::accumulate(step_s.begin(), step_s.end(), 0.0);
}

void judge_loading(Context& context, const Waiting& waiting, const Json& sources) {
  const double p95_ms = 1e3 * probes::quantile(waiting.fetch_s, 0.95);
  const Json evidence = {{"share_percent", reports::number(waiting.percent())},
                         {"fetch_p50_ms", reports::number(1e3 * probes::median(waiting.fetch_s))},
                         {"fetch_p95_ms", reports::number(p95_ms)},
                         {"step_p50_ms", reports::number(1e3 * probes::median(waiting.step_s))},
                         {"steps", waiting.step_s.size()},
                         {"sources", sources}};
  context.fact("data_loading", evidence);
  context.metric("fetch_p50", 1e3 * probes::median(waiting.fetch_s), "ms");
  context.metric("fetch_p95", p95_ms, "ms");
  context.expect_at_most("data_loading_share", waiting.percent(), context.settings().real("throughput.data_percent"),
                         "%", codes::kDataLoading, evidence);
  context.expect_at_most("fetch_p95", p95_ms, context.settings().real("throughput.fetch_ms"), "ms", codes::kDataLoading,
                         evidence);
}

namespace {

constexpr int kFetches = 200, kOverlappedSteps = 12;

nsa::train::StreamOptions stream_options(const Context& context, const nsa::Config& config) {
  nsa::train::StreamOptions options;
  options.data = text_file(context.settings(), config).string();
  options.batch_size = config.train.batch_size;
  options.seq_len = config.train.seq_len;
  options.seed = context.seed("data");
  options.order = nsa::train::Order::random_crops;
  options.vocab = config.model.vocab;
  return options;
}

nsa::train::BatchSource source_of(std::shared_ptr<nsa::train::BatchStream> stream) {
  return [stream = std::move(stream)] { return stream->next().tokens; };
}

// Each kind of source by itself.
Json time_sources(Context& context, const nsa::Config& config) {
  nsa::train::StreamOptions options = stream_options(context, config);
  const auto timed = [&](const char* name, std::shared_ptr<nsa::train::BatchStream> stream, int count) {
    context.phase(name);
    Json row = fetch(context, source_of(std::move(stream)), count).to_json();
    row["source"] = name;
    return row;
  };
  Json table = Json::array();
  table.push_back(timed("random crops", nsa::train::open_stream(options), kFetches));
  table.push_back(timed("random crops, prefetched",
                        std::make_shared<nsa::train::Prefetch>(nsa::train::open_stream(options)), kFetches));
  options.data = "synthetic";
  options.order = nsa::train::Order::sequential;
  table.push_back(timed("synthetic", nsa::train::open_stream(options), kFetches));
  return table;
}

}  // namespace

void data_loading(const Subject& subject, Context& context) {
  const nsa::Config config = subject.config(context);
  const Json sources = time_sources(context, config);
  context.phase("training steps");
  Bench bench = make_bench(subject, context, config, subject.flags());
  nsa::train::Trainer trainer(
      bench.instance.model, config.train,
      std::shared_ptr<nsa::train::BatchStream>(nsa::train::open_stream(stream_options(context, config))));
  Waiting waiting;
  for (int i = 0; i <= kOverlappedSteps; ++i) {
    const nsa::train::StepReport report = trainer.step();
    context.progress();
    if (report.stop != nsa::train::Stop::none) {
      context.finding(codes::kFarBelowGate,
                      fmt::format("data_loading: training stopped in step {} with '{}' {}", report.step,
                                  nsa::train::to_string(report.stop), report.anomaly));
      return;
    }
    const bool captures = trainer.by_graph() && bench.device.is_cuda();
    if (i == 0 || (captures && trainer.graph_replays() < 2)) continue;  // warm-up
    waiting.fetch_s.push_back(report.fetch_seconds);
    waiting.step_s.push_back(report.seconds);
    if (report.seconds > 3) break;  // a step that slow has told its share
  }
  judge_loading(context, waiting, sources);
}

}  // namespace suites::throughput_cases
