// Case kv_expansion: are keys and values copied once per query head? Case packing: is the workspace of the path without
// gradients really reused? Copies are counted, not timed. Case packing_cost: the time that fresh tensors cost instead.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "nsa/call.hpp"
#include "suites/codes.hpp"
#include "suites/probes/op_bytes.hpp"
#include "suites/probes/tokens.hpp"
#include "suites/throughput/cases.hpp"
#include "suites/throughput/kv_copies.hpp"
#include "suites/throughput/timing.hpp"
#include "suites/ways.hpp"

namespace suites::throughput_cases {

namespace {

using harness::Context;
using harness::Json;

constexpr std::int64_t kHeadsPerGroup = 4;  // so that an expansion is four times the bytes, twice the bound
constexpr double kAllowed = 2;              // one copy in another layout or type is allowed beside the analytic count

// The analytic count: bytes of K and V that a call needs in memory of its own at most once over.
struct Expectation {
  std::int64_t bytes = 0;
  std::string why;
};
Expectation unexpanded(const at::Tensor& k, const at::Tensor& v) {
  return {static_cast<std::int64_t>(k.nbytes() + v.nbytes()), "K and V once, one head a group"};
}
Expectation gathered(const at::Tensor& k, const at::Tensor& v, const nsa::Geometry& g) {
  const std::int64_t S = k.size(1), rows = k.size(0) * S * k.size(2);
  const std::int64_t columns = std::min(g.n_sel, nsa::selection_blocks(g, S)) * g.l_sel;
  const std::int64_t element = static_cast<std::int64_t>(k.element_size());
  return {(rows * columns + rows + columns) * (k.size(3) + v.size(3)) * element,
          "every chosen block of every query, one head a group, and K and V once"};
}

// Judges one attention call inside a model, whatever tensors the model passed: the same shapes with a pattern in them.
class CopyWitness {
 public:
  // `mode` tells the checks of several passes apart.
  CopyWitness(Context& context, const nsa::ModelConfig& model, std::string mode)
      : context_(context), model_(model), mode_(std::move(mode)) {}

  nsa::Ops wrap(nsa::Ops ops, const nsa::Route& route) {
    const bool masked = route[nsa::Op::attend_selected].variant == nsa::RouteVariant::masked ||
                        route[nsa::Op::attend_selected].backend == nsa::Backend::reference;
    auto inner = std::make_shared<nsa::Ops>(ops);
    if (ops.way == nsa::AttendWay::in_one) {
      ops.replace(&nsa::Ops::attend, [this, inner](const nsa::AttendArgs& args) {
        judge_in_one(*inner, args);
        return inner->attend(args);
      });
      return ops;
    }
    ops.replace(&nsa::Ops::attend_window, [this, inner](const nsa::AttendWindowArgs& args) {
      nsa::AttendWindowArgs probe = args;
      judge("attend_window", args.k, args.v, unexpanded(args.k, args.v), [&](const KvPattern& p) {
        probe.k = p.k, probe.v = p.v;
        (void)inner->attend_window(probe);
      });
      return inner->attend_window(args);
    });
    ops.replace(&nsa::Ops::attend_selected, [this, inner, masked](const nsa::AttendSelectedArgs& args) {
      nsa::AttendSelectedArgs probe = args;
      const Expectation wanted = masked ? unexpanded(args.k, args.v) : gathered(args.k, args.v, args.geometry);
      judge("attend_selected", args.k, args.v, wanted, [&](const KvPattern& p) {
        probe.k = p.k, probe.v = p.v;
        (void)inner->attend_selected(probe);
      });
      return inner->attend_selected(args);
    });
    ops.replace(&nsa::Ops::attend_compressed, [this, inner](const nsa::AttendCompressedArgs& args) {
      nsa::AttendCompressedArgs probe = args;
      judge("attend_compressed", args.kv.k, args.kv.v, unexpanded(args.kv.k, args.kv.v), [&](const KvPattern& p) {
        probe.kv = {p.k, p.v};
        (void)inner->attend_compressed(probe);
      });
      return inner->attend_compressed(args);
    });
    return ops;
  }
  [[nodiscard]] const Json& table() const { return table_; }

 private:
  // Each branch's keys and values in turn.
  void judge_in_one(const nsa::Ops& ops, const nsa::AttendArgs& args) {
    const auto branch = [&](const char* name, const at::Tensor& k, const at::Tensor& v, const auto& put) {
      judge(std::string("attend_") + name, k, v, unexpanded(k, v), [&](const KvPattern& p) {
        nsa::AttendArgs probe = args;
        put(probe, p);
        (void)ops.attend(probe);
      });
    };
    branch("compressed", args.kv.k, args.kv.v, [](auto& a, const auto& p) { a.kv = {p.k, p.v}; });
    branch("selected", args.k_sel, args.v_sel, [](auto& a, const auto& p) { a.k_sel = p.k, a.v_sel = p.v; });
    branch("window", args.k_win, args.v_win, [](auto& a, const auto& p) { a.k_win = p.k, a.v_win = p.v; });
  }

  void judge(const std::string& op, const at::Tensor& k, const at::Tensor& v, const Expectation& wanted,
             const std::function<void(const KvPattern&)>& call) {
    context_.phase(op + ", " + mode_);
    // Already wide when they arrive: then the expansion happened before the op.
    context_.expect(fmt::format("{}_heads_{}", op, mode_),
                    k.size(2) == model_.n_kv_groups && v.size(2) == model_.n_kv_groups,
                    fmt::format("{} is given K with {} and V with {} heads for {} groups", op, k.size(2), v.size(2),
                                model_.n_kv_groups),
                    codes::kExpandedKv, {{"op", op}, {"k", k.sizes().vec()}, {"v", v.sizes().vec()}});
    const KvPattern pattern = kv_pattern(k.sizes(), v.sizes(), k.options().requires_grad(false));
    const probes::OpBytes work = probes::measure_bytes([&] { call(pattern); });
    const std::vector<KvCopy> copies = kv_copies(pattern, [&] { call(pattern); });
    const auto bytes = static_cast<double>(total_bytes(copies));
    Json evidence = {{"op", op},
                     {"mode", mode_},
                     {"copied_bytes", bytes},
                     {"expected_bytes", wanted.bytes},
                     {"expected", wanted.why},
                     {"ratio", reports::number(bytes / static_cast<double>(wanted.bytes))},
                     {"heads_per_group", model_.heads_per_group()},
                     {"allocated_bytes", work.allocated},
                     {"aten_ops", work.ops},
                     {"copies", Json::array()}};
    for (const KvCopy& copy : copies) {
      evidence["copies"].push_back({{"by", copy.op}, {"bytes", copy.bytes}, {"shape", copy.tensor.sizes().vec()}});
    }
    context_.expect_at_most(fmt::format("{}_copied_kv_{}", op, mode_), bytes,
                            kAllowed * static_cast<double>(wanted.bytes), "byte", codes::kExpandedKv, evidence);
    table_.push_back(evidence);
    context_.progress();
  }

  Context& context_;
  nsa::ModelConfig model_;
  std::string mode_;
  Json table_ = Json::array();
};

// A forward pass of one layer of the model in use, with enough heads in a group to tell an expansion from a copy.
void watch_copies(const Subject& subject, Context& context, bool training) {
  nsa::Config config = subject.config(context);
  config.model.n_layers = 1;
  config.model.n_heads = std::max(config.model.n_heads, kHeadsPerGroup * config.model.n_kv_groups);
  const nsa::EffectiveFlags flags = subject.flags();
  Bench bench = make_bench(subject, context, config, flags);
  const std::string mode = training ? "with_gradients" : "without_gradients";
  CopyWitness witness(context, config.model, mode);
  nsa::Runtime& runtime = *bench.instance.model->runtime;
  runtime.ops = [&witness, flags, provider = runtime.ops](const nsa::Call& call) {
    return witness.wrap(provider(call), nsa::route(flags, call));
  };
  const at::AutoGradMode gradients(training);
  // An odd length, with every block kind in it.
  const std::int64_t S = 4 * config.model.nsa.l_sel + 7;
  (void)bench.instance.model->forward(probes::text_tokens(context, config, {2, S}).narrow(1, 0, S));
  context.fact(mode, witness.table());
}

// ---- packing ------------------------------------------------------------------------------------------------------

// The run's own flags, whatever else they ask for: no way of the table, which would set them back.
nsa::EffectiveFlags packing_flags(const Subject& subject, bool safe) {
  nsa::EffectiveFlags flags = subject.flags();
  flags.train_safe_pack = safe;
  flags.use_cuda = false;  // its kernels read K and V where they are: what is packed is sdpa's
  return flags;
}

// Two calls of the selected branch without gradients must gather into the same memory.
void prove_reuse(const Subject& subject, Context& context, const nsa::Config& config,
                 const nsa::EffectiveFlags& flags) {
  const nsa::ModelConfig& m = config.model;
  const std::int64_t B = 1, S = 4 * m.nsa.l_sel + 7;
  const at::Device device = device_of(context);
  const nsa::Call call = nsa::call_of(m, B, S, config.train.precision, device);
  const nsa::Choice choice = nsa::route(flags, call)[nsa::Op::attend_selected];
  if (!way_named("sdpa_packed").parts.at(nsa::Op::attend_selected).holds(choice)) {
    context.fact("reuse", "not judged: the route is '" + nsa::to_string(choice) + "', which uses no workspace");
    return;
  }
  const nsa::Ops ops = subject.ops(flags, call);
  const auto options = at::TensorOptions().dtype(nsa::storage_type(config.train.precision)).device(device);
  const KvPattern pattern = kv_pattern({B, S, m.n_kv_groups, m.d_k}, {B, S, m.n_kv_groups, m.d_v}, options);
  const at::Tensor q = at::randn({B, S, m.n_heads, m.d_k}, options);
  const nsa::Compressed compressed = ops.compress(
      {.k = at::randn_like(pattern.k), .v = pattern.v, .geometry = m.nsa, .cu_seqlens = {}, .phi_k = {}, .phi_v = {}});
  const nsa::AttendSelectedArgs args{q, pattern.k, pattern.v, ops.select({q, compressed.k, m.nsa, {}}), m.nsa, {}};
  const auto watch = [&] { return kv_copies(pattern, [&] { (void)ops.attend_selected(args); }); };
  const std::vector<KvCopy> first = watch(), second = watch();
  std::int64_t reused = 0;
  for (const KvCopy& copy : second) {
    const bool again = std::any_of(first.begin(), first.end(), [&](const KvCopy& c) { return c.same_memory(copy); });
    if (again) reused += copy.bytes;
  }
  const Expectation wanted = gathered(pattern.k, pattern.v, m.nsa);
  context.expect_at_least("reused_bytes", static_cast<double>(reused), 0.8 * static_cast<double>(wanted.bytes), "byte",
                          codes::kWorkspaceNotReused,
                          {{"reused_bytes", reused},
                           {"gathered_bytes", wanted.bytes},
                           {"copied_by_first_call", total_bytes(first)},
                           {"copied_by_second_call", total_bytes(second)}});
}

}  // namespace

void kv_expansion(const Subject& subject, Context& context) {
  watch_copies(subject, context, /*training=*/true);
  watch_copies(subject, context, /*training=*/false);
}

void packing(const Subject& subject, Context& context) {
  const at::NoGradGuard no_grad;
  prove_reuse(subject, context, subject.config(context), packing_flags(subject, /*safe=*/false));
}

void packing_cost(const Subject& subject, Context& context) {
  const at::NoGradGuard no_grad;
  const nsa::Config config = subject.config(context);
  const nsa::EffectiveFlags reusing = packing_flags(subject, /*safe=*/false), safe = packing_flags(subject, true);
  const std::int64_t S = config.train.seq_len;
  const at::Tensor tokens = probes::text_tokens(context, config, {config.train.batch_size, S}).narrow(1, 0, S);
  Bench by_reuse = make_bench(subject, context, config, reusing), by_safe = make_bench(subject, context, config, safe);
  const auto forward = [&](Bench& bench) {
    return [&] {
      (void)bench.instance.model->forward(tokens);
      context.progress();
    };
  };
  const int blocks = static_cast<int>(context.settings().integer("throughput.repeats") + 2) / 3;  // of two runs each
  (void)time_abba(by_reuse.device, 1, forward(by_reuse), forward(by_safe));                       // allocations, clocks
  const auto [reused_s, safe_s, in_order] = time_abba(by_reuse.device, blocks, forward(by_reuse), forward(by_safe));
  const probes::Interval ratio = probes::bootstrap_ratio(safe_s, reused_s);
  const double percent = 100 * (probes::median(safe_s) / probes::median(reused_s) - 1);
  const double allowed = context.settings().real("throughput.packing_overhead_percent");
  const Json evidence = {{"safe_s", to_json(summarise(safe_s))},
                         {"reused_s", to_json(summarise(reused_s))},
                         {"ratio", {reports::number(ratio.low), reports::number(ratio.high)}}};
  context.metric("safe_packing_overhead", percent, "%");
  context.fact("safe_packing", evidence);
  // On the CPU fresh memory comes from the operating system, page by page: that is its cost and not the product's.
  if (!context.cuda() || 100 * (ratio.low - 1) <= allowed) return;
  context.finding(
      codes::kPackingOverhead,
      fmt::format("safe packing makes a forward pass {:.1f} % slower (95 % interval from {:.1f} %), allowed "
                  "are {:.1f} %",
                  percent, 100 * (ratio.low - 1), allowed),
      evidence);
}

}  // namespace suites::throughput_cases
