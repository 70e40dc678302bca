// Case stage_shares: where the time of a training step goes, stage by stage, forward and backward. Case
// attention_alone: the same layer's attention without the model round it, and plain dense attention beside both.
#include <ATen/ATen.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "nsa/call.hpp"
#include "suites/probes/stage_clock.hpp"
#include "suites/probes/tokens.hpp"
#include "suites/throughput/cases.hpp"
#include "suites/throughput/timing.hpp"

namespace suites::throughput_cases {

namespace {

using harness::Context;
using harness::Json;
using probes::PassTimes;

// Attention in one is one kernel after another without a stage's gradient between them, so its parts share one row.
std::vector<PassTimes> as_one_stage(std::vector<PassTimes> passes) {
  static const std::set<std::string> kParts = {"attend_compressed", "select", "attend_selected", "attend_window",
                                               "combine"};
  for (PassTimes& pass : passes) {
    std::vector<probes::StageTime> stages;
    std::size_t whole = 0;
    for (probes::StageTime& stage : pass.stages) {
      if (!kParts.contains(stage.stage)) {
        stages.push_back(std::move(stage));
      } else if (whole == 0) {
        stages.push_back({"attend", stage.forward_s, stage.backward_s});
        whole = stages.size();
      } else {
        stages[whole - 1].forward_s += stage.forward_s;
        stages[whole - 1].backward_s += stage.backward_s;
      }
    }
    pass.stages = std::move(stages);
  }
  return passes;
}

bool went_in_one(const Bench& bench) {
  const auto routes = bench.instance.dispatcher->routes_taken();
  return std::any_of(routes.begin(), routes.end(),
                     [](const nsa::Taken& t) { return t.choice.variant == nsa::RouteVariant::in_one; });
}

// Median over passes of each stage's times.
Json stage_table(const std::vector<PassTimes>& passes, double tokens) {
  const auto median_of = [&](const auto& value) {
    std::vector<double> sample;
    for (const PassTimes& pass : passes) sample.push_back(value(pass));
    return probes::median(sample);
  };
  const double total = median_of([](const PassTimes& pass) { return pass.total(); });
  Json table = Json::array();
  for (std::size_t i = 0; i < passes.front().stages.size(); ++i) {
    const double forward = median_of([&](const PassTimes&pass) { return pass.stages[i].forward_s; }),
                 backward = median_of([&](const PassTimes&pass) { return pass.stages[i].backward_s; });
    table.push_back({{"stage", passes.front().stages[i].stage},
                     {"forward_ms", reports::number(1e3 * forward)},
                     {"backward_ms", reports::number(1e3 * backward)},
                     {"forward_percent", reports::number(100 * forward / total)},
                     {"backward_percent", reports::number(100 * backward / total)},
                     {"us_per_token", reports::number(1e6 * (forward + backward) / tokens)}});
  }
  return table;
}

// One pass of the model under a stage clock.
PassTimes clocked_pass(Bench& bench, probes::StageClock& clock, const at::Tensor& tokens) {
  bench.instance.model->zero_grad();
  clock.begin();
  const at::Tensor loss = bench.instance.model->loss(tokens);
  clock.begin_backward();
  loss.backward();
  return clock.end();
}

// One layer's attention at the model's shape, as the model calls it: random projections,
// `compress`, `attend`, and back.
class Attention {
 public:
  Attention(const Subject& subject, Context& context, const nsa::Config& config)
      : model_(config.model), B_(config.train.batch_size), S_(config.train.seq_len) {
    const at::Device device = device_of(context);
    ops_ =
        subject.ops(subject.flags(), nsa::call_of(model_, B_, S_, config.train.precision, device, /*training=*/true));
    const auto options = at::TensorOptions().dtype(nsa::storage_type(config.train.precision)).device(device);
    const auto tensor = [&](std::int64_t heads, std::int64_t width) {
      return at::randn({B_, S_, heads, width}, options).requires_grad_();
    };
    q_ = tensor(model_.n_heads, model_.d_k);
    for (auto* kv : {&cmp_, &sel_, &win_})
      *kv = {tensor(model_.n_kv_groups, model_.d_k), tensor(model_.n_kv_groups, model_.d_v)};
    gates_ = at::rand({B_, S_, model_.n_kv_groups, 3}, options).requires_grad_();
    upstream_ = at::randn({B_, S_, model_.n_heads, model_.d_v}, options);
  }

  at::Tensor forward() const {
    const nsa::Geometry& g = model_.nsa;
    const nsa::Compressed blocks =
        ops_.compress({.k = cmp_.k, .v = cmp_.v, .geometry = g, .cu_seqlens = {}, .phi_k = {}, .phi_v = {}});
    return ops_.attend({q_, blocks, sel_.k, sel_.v, win_.k, win_.v, gates_, g, {}});
  }
  // All keys before each query, no choice of any: on a GPU by FlashAttention-2 itself.
  at::Tensor dense() const {
    if (q_.is_cuda() && model_.d_k == model_.d_v && q_.scalar_type() == at::kBFloat16) {
      return std::get<0>(at::_flash_attention_forward(q_, sel_.k, sel_.v, {}, {}, S_, S_, 0.0, /*is_causal=*/true,
                                                      /*return_debug_mask=*/false));
    }
    return at::scaled_dot_product_attention(q_.transpose(1, 2), sel_.k.transpose(1, 2), sel_.v.transpose(1, 2), {}, 0.0,
                                            /*is_causal=*/true, {}, /*enable_gqa=*/true)
        .transpose(1, 2);
  }
  void backward(const at::Tensor& o) const { o.backward(upstream_); }
  [[nodiscard]] double tokens() const { return static_cast<double>(B_ * S_); }

 private:
  struct KeysAndValues {
    at::Tensor k, v;
  };
  nsa::ModelConfig model_;
  std::int64_t B_, S_;
  nsa::Ops ops_;
  at::Tensor q_, gates_, upstream_;
  KeysAndValues cmp_, sel_, win_;
};

}  // namespace

void stage_shares(const Subject& subject, Context& context) {
  context.phase("model");
  const nsa::Config config = subject.config(context);
  Bench bench = make_bench(subject, context, config, subject.flags());
  const std::int64_t B = config.train.batch_size, S = config.train.seq_len;
  const at::Tensor tokens = probes::text_tokens(context, config, {B, S});

  context.phase("warm-up, without the clock");
  const auto plain = [&] {
    bench.instance.model->zero_grad();
    bench.instance.model->loss(tokens).backward();
    context.progress();
  };
  const int repeats = static_cast<int>(context.settings().integer("throughput.repeats"));
  const double plain_s =
      probes::median(time_repeats("pass", bench.device, {.warm_up = 2, .repeats = repeats, .budget_s = 2}, plain));

  probes::StageClock clock(bench.device);
  bench.instance.model->runtime->observe = [&clock](std::string_view name, const at::Tensor& value) {
    clock.observe(name, value);
  };
  std::vector<PassTimes> passes;
  for (int i = 0; i < std::clamp(static_cast<int>(4 / plain_s), 1, repeats); ++i) {
    context.phase(fmt::format("pass {} under the stage clock", i + 1));
    passes.push_back(clocked_pass(bench, clock, tokens));
  }
  bench.instance.model->runtime->observe = nullptr;

  const auto sample = [&](const auto& value) {
    std::vector<double> values;
    for (const PassTimes& pass : passes) values.push_back(value(pass));
    return probes::median(values);
  };
  const double forward = sample([](const PassTimes&pass) { return pass.forward_s; }),
               backward = sample([](const PassTimes&pass) { return pass.backward_s; });
  context.metric("forward", 1e3 * forward, "ms");
  context.metric("backward", 1e3 * backward, "ms");
  context.metric("backward_to_forward", backward / forward, "1");
  context.metric("clock_overhead", 100 * ((forward + backward) / plain_s - 1), "%");
  if (went_in_one(bench)) passes = as_one_stage(std::move(passes));
  // Of each pass by itself: medians of stages over passes need not add up to the median of passes.
  context.metric("covered_by_stages", sample([](const PassTimes& pass) {
                   double stages = 0;
                   for (const probes::StageTime& stage : pass.stages) stages += stage.forward_s + stage.backward_s;
                   return 100 * stages / pass.total();
                 }),
                 "%");
  context.fact("stages", stage_table(passes, static_cast<double>(B * S)));
}

void attention_alone(const Subject& subject, Context& context) {
  context.phase("model");
  const nsa::Config config = subject.config(context);
  Bench bench = make_bench(subject, context, config, subject.flags());
  const at::Tensor tokens = probes::text_tokens(context, config, {config.train.batch_size, config.train.seq_len});
  const int repeats = static_cast<int>(context.settings().integer("throughput.repeats"));
  const TimingPlan plan{.warm_up = 2, .repeats = repeats, .budget_s = 2};
  const Attention attention(subject, context, config);
  Json table = Json::array();
  const auto rate_of = [&](const std::string& name, const std::function<void()>& work) {
    context.phase(name);
    const Summary rate = summarise(rates(time_repeats(name, bench.device, plan,
                                                      [&] {
                                                        work();
                                                        context.progress();
                                                      }),
                                         attention.tokens()));
    context.metric(name, rate.median, "tok/s");
    table.push_back({{"what", name}, {"tok_s", to_json(rate)}});
    return rate.median;
  };
  const double model = rate_of("model_forward_and_backward", [&] {
    bench.instance.model->zero_grad();
    bench.instance.model->loss(tokens).backward();
  });
  const double both = rate_of("attention_of_one_layer", [&] { attention.backward(attention.forward()); });
  const at::NoGradGuard no_grad;
  (void)rate_of("attention_of_one_layer_forward", [&] { (void)attention.forward(); });
  const double dense = rate_of("dense_attention_forward", [&] { (void)attention.dense(); });
  {
    const at::AutoGradMode gradients(true);
    (void)rate_of("dense_attention", [&] { attention.backward(attention.dense()); });
  }
  const auto layers = static_cast<double>(config.model.n_layers);
  context.metric("attention_share_of_step", 100 * layers * model / both, "%");
  // What the seeds' engineers computed: one kernel's tokens a second against those of the whole model.
  context.metric("dense_attention_to_model", dense / model, "1");
  context.fact("attention", table);
}

}  // namespace suites::throughput_cases
