// Case inference: the forward pass without gradients, and beside it the attention alone, stage by stage: where does the
// time go?
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "nsa/call.hpp"
#include "suites/codes.hpp"
#include "suites/probes/tokens.hpp"
#include "suites/throughput/cases.hpp"
#include "suites/throughput/timing.hpp"

namespace suites::throughput_cases {

namespace {

using harness::Context;
using harness::Json;

// The six stages of one attention layer at the model's shape, each ready to be called.
struct Stage {
  const char* name;
  std::function<void()> run;
};
std::vector<Stage> stages(const Subject& subject, Context& context, const nsa::Config& config) {
  const nsa::ModelConfig& m = config.model;
  const std::int64_t B = config.train.batch_size, S = config.train.seq_len;
  const at::Device device = device_of(context);
  const auto options = at::TensorOptions().dtype(nsa::storage_type(config.train.precision)).device(device);
  const nsa::Ops ops = subject.ops(subject.flags(), nsa::call_of(m, B, S, config.train.precision, device));

  const at::Tensor q = at::randn({B, S, m.n_heads, m.d_k}, options);
  const at::Tensor k = at::randn({B, S, m.n_kv_groups, m.d_k}, options);
  const at::Tensor v = at::randn({B, S, m.n_kv_groups, m.d_v}, options);
  const at::Tensor gates = at::rand({B, S, m.n_kv_groups, 3}, options);
  const nsa::Compressed compressed =
      ops.compress({.k = k, .v = v, .geometry = m.nsa, .cu_seqlens = {}, .phi_k = {}, .phi_v = {}});
  const nsa::SelectArgs select{q, compressed.k, m.nsa, {}};
  const at::Tensor blocks = ops.select(select);
  const at::Tensor o = at::randn({B, S, m.n_heads, m.d_v}, options);
  return {
      {"compress",
       [=] { (void)ops.compress({.k = k, .v = v, .geometry = m.nsa, .cu_seqlens = {}, .phi_k = {}, .phi_v = {}}); }},
      {"attend_compressed",
       [=] {
         (void)ops.attend_compressed({q, compressed, m.nsa, {}});
       }},
      {"select", [=] { (void)ops.select(select); }},
      {"attend_selected",
       [=] {
         (void)ops.attend_selected({q, k, v, blocks, m.nsa, {}});
       }},
      {"attend_window",
       [=] {
         (void)ops.attend_window({q, k, v, m.nsa, {}});
       }},
      {"combine",
       [=] {
         (void)ops.combine({gates, o, o, o});
       }},
  };
}

}  // namespace

void inference(const Subject& subject, Context& context) {
  const at::NoGradGuard no_grad;
  context.phase("model");
  const nsa::Config config = subject.config(context);
  Bench bench = make_bench(subject, context, config, subject.flags());
  const std::int64_t B = config.train.batch_size, S = config.train.seq_len;
  const at::Tensor tokens = probes::text_tokens(context, config, {B, S}).narrow(1, 0, S);
  const int repeats = static_cast<int>(context.settings().integer("throughput.repeats"));
  const TimingPlan plan{.warm_up = 2, .repeats = repeats, .budget_s = 1};
  const auto token_count = static_cast<double>(B * S);
  const std::vector<double> forward = time_repeats("forward", bench.device, plan, [&] {
    (void)bench.instance.model->forward(tokens);
    context.progress();
  });
  const Summary rate = tell_rate(context, "inference", rates(forward, token_count));

  context.phase("attention alone");
  const double forward_s = probes::median(forward), layers = static_cast<double>(config.model.n_layers);
  Json table = Json::array();
  double attention_s = 0;
  for (const Stage& stage : stages(subject, context, config)) {
    const double s = probes::median(time_repeats(stage.name, bench.device, plan, stage.run));
    context.progress();
    attention_s += s;
    table.push_back({{"stage", stage.name},
                     {"ms_a_layer", reports::number(1e3 * s)},
                     {"percent_of_forward", reports::number(100 * layers * s / forward_s)}});
  }
  // One layer's attention against the whole model: like with like only in tokens, hence the name.
  context.metric("attention_of_one_layer", token_count / attention_s, "tok/s");
  context.metric("attention_to_model", token_count / attention_s / rate.median, "1");
  context.metric("attention_share_of_forward", 100 * layers * attention_s / forward_s, "%");
  context.fact("stages", table);
}

}  // namespace suites::throughput_cases
