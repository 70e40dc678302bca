#include "nsa/model/attention.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nsa/call.hpp"
#include "nsa/model/rope.hpp"
#include "nsa/nvtx.hpp"

namespace nsa {

namespace {

torch::nn::Linear linear(std::int64_t in, std::int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

}  // namespace

NsaAttentionImpl::NsaAttentionImpl(const ModelConfig& config, std::int64_t layer, std::shared_ptr<Runtime> runtime)
    : config_(config), name_(fmt::format("layers.{}.attention", layer)), runtime_(std::move(runtime)) {
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

Call NsaAttentionImpl::call(const torch::Tensor& rotated_q, bool packed, bool grad) const {
  return call_of(rotated_q, {config_.n_kv_groups, config_.d_v, config_.nsa, packed, grad});
}

torch::Tensor NsaAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& rotations,
                                        const CuSeqlens& cu_seqlens) {
  const auto& flags = runtime_->flags;
  const auto& g = config_.nsa;
  const NvtxRange whole(flags.nvtx, name_.c_str());
  const auto heads = [&](torch::nn::Linear& projection, std::int64_t count) {
    return projection(x).unflatten(-1, {count, -1});  // [B,S,count,D]
  };
  const auto keys = [&](torch::nn::Linear& projection) {
    return rotate(heads(projection, config_.n_kv_groups), rotations);
  };
  const auto values = [&](torch::nn::Linear& projection) { return heads(projection, config_.n_kv_groups); };
  const auto wanted = [&](ForcedBranch branch) {
    return flags.forced_branch == ForcedBranch::none || flags.forced_branch == branch;
  };

  torch::Tensor queries, gates, o_cmp, o_sel, o_win;
  {
    const NvtxRange range(flags.nvtx, "gate");
    const auto plain = heads(q, config_.n_heads);
    gates = gate(plain, flags);
    queries = rotate(plain, rotations);
    observe("gates", gates);
    observe("q", queries);
  }
  const auto all = parameters();
  const bool grad =
      x.requires_grad() || std::any_of(all.begin(), all.end(), [](const auto& p) { return p.requires_grad(); });
  const Ops ops = runtime_->ops(call(queries, cu_seqlens.has_value(), grad));

  Compressed blocks_kv;
  if (wanted(ForcedBranch::cmp) || wanted(ForcedBranch::sel)) {
    const NvtxRange range(flags.nvtx, "compress");
    const auto weights = [](const Compressor& phi) { return phi ? std::optional(phi->weights()) : std::nullopt; };
    blocks_kv = ops.compress({keys(k_cmp), values(v_cmp), g, cu_seqlens, weights(phi_k), weights(phi_v)});
    observe("cmp.k", blocks_kv.k);
    observe("cmp.v", blocks_kv.v);
  }
  if (wanted(ForcedBranch::cmp)) {
    const NvtxRange range(flags.nvtx, "attend_compressed");
    o_cmp = ops.attend_compressed({queries, blocks_kv, g, cu_seqlens}).o;
    observe("cmp.o", o_cmp);
  }
  if (wanted(ForcedBranch::sel)) {
    torch::Tensor blocks;
    {
      const NvtxRange range(flags.nvtx, "select");
      blocks = ops.select({queries.detach(), blocks_kv.k.detach(), g, cu_seqlens});
      observe("blocks", blocks);
    }
    const NvtxRange range(flags.nvtx, "attend_selected");
    o_sel = ops.attend_selected({queries, keys(k_sel), values(v_sel), blocks, g, cu_seqlens}).o;
    observe("sel.o", o_sel);
  }
  if (wanted(ForcedBranch::win)) {
    const NvtxRange range(flags.nvtx, "attend_window");
    o_win = ops.attend_window({queries, keys(k_win), values(v_win), g, cu_seqlens}).o;
    observe("win.o", o_win);
  }

  const NvtxRange range(flags.nvtx, "combine");
  torch::Tensor combined;
  for (const auto& branch : {o_cmp, o_sel, o_win})
    if (branch.defined()) combined = branch;
  if (flags.forced_branch == ForcedBranch::none) combined = ops.combine({gates, o_cmp, o_sel, o_win});
  observe("o", combined);
  return o(combined.flatten(2));
}

}  // namespace nsa
