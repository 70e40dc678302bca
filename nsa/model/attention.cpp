#include "nsa/model/attention.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nsa/call.hpp"
#include "nsa/cuda/project.hpp"
#include "nsa/model/checked.hpp"
#include "nsa/model/rope.hpp"
#include "nsa/nvtx.hpp"

namespace nsa {

namespace {

torch::nn::Linear linear(std::int64_t in, std::int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

}  // namespace

NsaAttentionImpl::NsaAttentionImpl(const ModelConfig& config, std::int64_t layer, std::shared_ptr<Runtime> runtime)
    : config_(checked(config)), name_(fmt::format("layers.{}.attention", layer)), runtime_(std::move(runtime)) {
  const std::int64_t keys = config.n_kv_groups * config.d_k, values = config.n_kv_groups * config.d_v;
  q = register_module("q", linear(config.dim, config.n_heads * config.d_k));
  k_cmp = register_module("k_cmp", linear(config.dim, keys));
  v_cmp = register_module("v_cmp", linear(config.dim, values));
  k_sel = register_module("k_sel", linear(config.dim, keys));
  v_sel = register_module("v_sel", linear(config.dim, values));
  k_win = register_module("k_win", linear(config.dim, keys));
  v_win = register_module("v_win", linear(config.dim, values));
  if (config.phi == Phi::mlp) {
    phi_k = register_module("phi_k", Compressor(config.nsa.l, config.d_k));
    phi_v = register_module("phi_v", Compressor(config.nsa.l, config.d_v));
  }
  gate = register_module("gate", Gate(config.d_k, config.n_kv_groups, config.gate, config.gate_tau));
  o = register_module("o", linear(config.n_heads * config.d_v, config.dim));
}

void NsaAttentionImpl::reset_parameters() {
  for (const auto& projection : {q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win}) projection.ptr()->reset_parameters();
  if (phi_k) phi_k->reset_parameters();
  if (phi_v) phi_v->reset_parameters();
  gate->reset_parameters();
  o->reset_parameters();
}

void NsaAttentionImpl::observe(std::string_view stage, const torch::Tensor& value) const {
  if (runtime_->observe) runtime_->observe(fmt::format("{}.{}", name_, stage), value);
}

bool NsaAttentionImpl::computes(ForcedBranch branch) const {
  const ForcedBranch forced = runtime_->flags.forced_branch;
  return forced == ForcedBranch::none || forced == branch;
}

Projected NsaAttentionImpl::project_in_one(const torch::Tensor& x, const torch::Tensor& rotations) {
  const cuda::ProjectShape shape{config_.n_heads, config_.n_kv_groups, config_.d_k, config_.d_v};
  const auto made = cuda::project(
      x, {q->weight, k_cmp->weight, k_sel->weight, k_win->weight, v_cmp->weight, v_sel->weight, v_win->weight},
      rotations, shape);
  const auto& [queries, cmp_k, sel_k, win_k, cmp_v, sel_v, win_v] = made.heads;
  Projected p{gate->of_mean(made.mean, runtime_->flags), queries, cmp_k, cmp_v, sel_k, sel_v, win_k, win_v};
  observe_queries(p);
  return p;
}

Projected NsaAttentionImpl::project_in_parts(const torch::Tensor& x, const torch::Tensor& rotations) {
  const auto heads = [&](torch::nn::Linear& projection, std::int64_t count) {
    return projection(x).unflatten(-1, {count, -1});  // [B,S,count,D]
  };
  const auto keys = [&](torch::nn::Linear& projection) {
    return rotate(heads(projection, config_.n_kv_groups), rotations);
  };
  const auto values = [&](torch::nn::Linear& projection) { return heads(projection, config_.n_kv_groups); };

  Projected p;
  const auto plain = heads(q, config_.n_heads);
  p.gates = gate(plain, runtime_->flags);
  p.q = rotate(plain, rotations);
  observe_queries(p);
  if (computes(ForcedBranch::cmp) || computes(ForcedBranch::sel)) {
    p.k_cmp = keys(k_cmp);
    p.v_cmp = values(v_cmp);
  }
  if (computes(ForcedBranch::sel)) {
    p.k_sel = keys(k_sel);
    p.v_sel = values(v_sel);
  }
  if (computes(ForcedBranch::win)) {
    p.k_win = keys(k_win);
    p.v_win = values(v_win);
  }
  return p;
}

void NsaAttentionImpl::observe_queries(const Projected& p) const {
  observe("gates", p.gates);
  if (runtime_->watch_gates) runtime_->watch_gates(name_, p.gates);
  observe("q", p.q);
}

Projected NsaAttentionImpl::project(const torch::Tensor& x, const torch::Tensor& rotations) {
  const NvtxRange range(runtime_->flags.nvtx, "project");
  const std::string refused = cuda::project_refusal(runtime_->flags, call_of(config_, x), x, gate->fc1->weight);
  if (refused.empty())
    runtime_->parts->add({"project", "cuda", "served"});
  else
    runtime_->parts->add({"project", "aten", "cuda refused: " + refused});
  Projected p = refused.empty() ? project_in_one(x, rotations) : project_in_parts(x, rotations);
  if (torch::GradMode::is_enabled()) {
    const auto all = parameters();
    p.grad = x.requires_grad() || std::any_of(all.begin(), all.end(), [](const auto& t) { return t.requires_grad(); });
  }
  return p;
}

Ops NsaAttentionImpl::ops(const Projected& p, bool packed) const {
  const CallOptions options{config_.n_kv_groups, config_.d_v, config_.nsa, packed, p.grad, config_.phi};
  return ops_for(*runtime_, call_of(p.q, options));
}

Compressed NsaAttentionImpl::compress(const Ops& ops, const at::Tensor& k, const at::Tensor& v,
                                      const CuSeqlens& cu_seqlens) const {
  if (!k.defined()) return {};
  const NvtxRange range(runtime_->flags.nvtx, "compress");
  const auto weights = [](const Compressor& phi) { return phi ? std::optional(phi->weights()) : std::nullopt; };
  return ops.compress({k, v, config_.nsa, cu_seqlens, weights(phi_k), weights(phi_v)});
}

AttendArgs NsaAttentionImpl::attend_args(const Projected& p, const Compressed& blocks,
                                         const CuSeqlens& cu_seqlens) const {
  AttendArgs args{p.q, blocks, p.k_sel, p.v_sel, p.k_win, p.v_win, p.gates, config_.nsa, cu_seqlens};
  args.only = runtime_->flags.forced_branch;
  args.nvtx = runtime_->flags.nvtx;
  if (runtime_->observe)
    args.observe = [watched = runtime_->observe, name = name_](std::string_view stage, const at::Tensor& value) {
      watched(fmt::format("{}.{}", name, stage), value);
    };
  return args;
}

torch::Tensor NsaAttentionImpl::finish(const torch::Tensor& attended) {
  observe("o", attended);
  return o(attended.flatten(2));
}

torch::Tensor NsaAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& rotations,
                                        const CuSeqlens& cu_seqlens) {
  const NvtxRange whole(runtime_->flags.nvtx, name_.c_str());
  const Projected projected = project(x, rotations);
  const Ops table = ops(projected, cu_seqlens.has_value());
  const Compressed blocks = compress(table, projected.k_cmp, projected.v_cmp, cu_seqlens);
  if (blocks.k.defined()) {
    observe("cmp.k", blocks.k);
    observe("cmp.v", blocks.v);
  }
  const NvtxRange range(runtime_->flags.nvtx, "attend");
  return finish(table.attend(attend_args(projected, blocks, cu_seqlens)));
}

}  // namespace nsa
