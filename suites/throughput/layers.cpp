// Case layers: forward and backward of 1, 2, 4 and 12 layers at 256 tokens, as the seeds' engineers timed them, and
// beside each what packing into fresh tensors costs a forward pass that could reuse its workspace.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "suites/codes.hpp"
#include "suites/probes/tokens.hpp"
#include "suites/throughput/cases.hpp"
#include "suites/throughput/timing.hpp"

namespace suites::throughput_cases {

namespace {

using harness::Context;
using harness::Json;

constexpr std::array<std::int64_t, 4> kLayers = {1, 2, 4, 12};
constexpr std::int64_t kLength = 256;
constexpr double kTolerance = 1.5;  // caches and allocators make depth cost a little more than its arithmetic

struct Row {
  std::int64_t layers = 0;
  std::vector<double> forward_s, backward_s;
  Abba without_gradients;  // a: reused workspace, b: fresh tensors

  [[nodiscard]] Depth depth() const {
    Depth depth{static_cast<double>(layers), {}};
    for (std::size_t i = 0; i < forward_s.size(); ++i) depth.seconds.push_back(forward_s[i] + backward_s[i]);
    return depth;
  }
  [[nodiscard]] double packing_percent() const {
    return 100 * (probes::median(without_gradients.b) / probes::median(without_gradients.a) - 1);
  }
  [[nodiscard]] Json to_json() const {
    const probes::Interval ratio = probes::bootstrap_ratio(without_gradients.b, without_gradients.a);
    return {{"layers", layers},
            {"forward_ms", reports::number(1e3 * probes::median(forward_s))},
            {"backward_ms", reports::number(1e3 * probes::median(backward_s))},
            {"total_ms", reports::number(1e3 * probes::median(depth().seconds))},
            {"safe_packing_percent", reports::number(packing_percent())},
            {"safe_packing_interval_percent",
             {reports::number(100 * (ratio.low - 1)), reports::number(100 * (ratio.high - 1))}}};
  }
};

Row measure(const Subject& subject, Context& context, nsa::Config config, std::int64_t layers) {
  context.phase(fmt::format("{} layers", layers));
  config.model.n_layers = layers;
  config.train.seq_len = kLength;
  config.train.batch_size = 1;
  Bench bench = make_bench(subject, context, config, subject.flags());
  nsa::LanguageModelImpl& model = *bench.instance.model;
  const at::Tensor tokens = probes::text_tokens(context, config, {1, kLength});
  Row row;
  row.layers = layers;

  // Forward and backward by themselves: the loss is computed in one timing and differentiated in the next.
  at::Tensor loss;
  const auto forward = [&] {
    model.zero_grad();
    loss = model.loss(tokens);
  };
  const auto backward = [&] { loss.backward(); };
  const double first = time_once(bench.device, forward) + time_once(bench.device, backward);
  const int repeats = std::clamp(static_cast<int>(3 / first), 3, 9);
  (void)time_once(bench.device, forward);
  (void)time_once(bench.device, backward);
  for (int i = 0; i < repeats; ++i) {
    row.forward_s.push_back(time_once(bench.device, forward));
    row.backward_s.push_back(time_once(bench.device, backward));
    context.progress();
  }

  // The same model with both ways of packing; without gradients, where the workspace may be reused at all.
  const at::NoGradGuard no_grad;
  nsa::EffectiveFlags reusing = subject.flags();
  reusing.train_safe_pack = false;
  nsa::EffectiveFlags safe = reusing;
  safe.train_safe_pack = true;
  Bench with_reuse = make_bench(subject, context, config, reusing),
        with_safe = make_bench(subject, context, config, safe);
  const at::Tensor inputs = tokens.narrow(1, 0, kLength);
  const auto pass = [&](Bench& of) { return [&of, &inputs] { (void)of.instance.model->forward(inputs); }; };
  const double warm = time_once(with_reuse.device, pass(with_reuse)) + time_once(with_safe.device, pass(with_safe));
  context.progress();
  row.without_gradients = time_abba(with_reuse.device, warm < 1 ? 4 : 1, pass(with_reuse), pass(with_safe));
  return row;
}

}  // namespace

void layers(const Subject& subject, Context& context) {
  const nsa::Config config = subject.config(context);
  std::vector<Depth> depths;
  Json table = Json::array();
  for (const std::int64_t count : kLayers) {
    const Row row = measure(subject, context, config, count);
    depths.push_back(row.depth());
    table.push_back(row.to_json());
    context.metric(fmt::format("forward_{}_layers", count), 1e3 * probes::median(row.forward_s), "ms");
    context.metric(fmt::format("backward_{}_layers", count), 1e3 * probes::median(row.backward_s), "ms");
    context.metric(fmt::format("safe_packing_{}_layers", count), row.packing_percent(), "%");
  }
  const probes::Interval ratio = growth(depths);
  context.fact("layers", table);
  context.metric("measured_to_foretold", ratio.low, "1");
  context.expect_at_most("time_of_all_layers_to_foretold_at_least", ratio.low, kTolerance, "1", codes::kLayerScaling,
                         {{"layers", table}});
}

}  // namespace suites::throughput_cases
