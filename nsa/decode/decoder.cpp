#include "nsa/decode/decoder.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "nsa/attend.hpp"
#include "nsa/cuda/decode.hpp"
#include "nsa/model/rope.hpp"
#include "nsa/nvtx.hpp"

namespace nsa::decode {

namespace {

void refuse_gradients(const char* what, LanguageModelImpl& model) {
  if (!at::GradMode::is_enabled()) return;
  const auto all = model.parameters();
  if (std::any_of(all.begin(), all.end(), [](const auto& t) { return t.requires_grad(); }))
    throw ContractError(
        fmt::format("{}: gradients are on and the model's parameters require them, but decoding keeps no graph; "
                    "allowed: under torch::NoGradGuard (for gradients: LanguageModel::forward)",
                    what));
}

}  // namespace

Decoder::Decoder(LanguageModel model, Options options) : model_(std::move(model)), options_(std::move(options)) {
  if (options_.capacity < 1)
    throw ContractError(fmt::format("Decoder: capacity = {}; allowed: at least 1 token", options_.capacity));
  if (options_.max_tokens < 0)
    throw ContractError(fmt::format("Decoder: max_tokens = {}; allowed: 0 (no limit) or more", options_.max_tokens));
  reset();
}

void Decoder::reset() {
  const std::int64_t room =
      options_.max_tokens > 0 ? std::min(options_.capacity, options_.max_tokens) : options_.capacity;
  caches_.assign(model_->layers->size(), LayerCache(model_->config.nsa, room));
  reads_.clear();
  rotations_ = torch::Tensor();
  length_ = batch_ = 0;
  broken_ = false;
}

// The contract of a call; afterwards the caches are being written.
void Decoder::begin(const char* what, const torch::Tensor& tokens) {
  refuse_gradients(what, *model_);
  if (broken_)
    throw ContractError(
        fmt::format("{}: an earlier call failed after it had begun to write the caches; allowed: "
                    "after reset()",
                    what));
  check_tokens(tokens, model_->config.vocab);
  const std::int64_t B = tokens.size(0), T = tokens.size(1);
  if (batch_ != 0 && B != batch_)
    throw ContractError(fmt::format("{}: tokens have B = {}; allowed: {}, that of the cached tokens", what, B, batch_));
  if (options_.max_tokens > 0 && length_ + T > options_.max_tokens)
    throw ContractError(fmt::format("{}: {} tokens after {} cached ones; allowed: {} in all (max_tokens)", what, T,
                                    length_, options_.max_tokens));
  batch_ = B;
  broken_ = true;
}

torch::Tensor Decoder::prefill(const torch::Tensor& tokens) {
  if (length_ > 0)
    throw ContractError(
        fmt::format("prefill: {} tokens are cached; allowed: into empty caches (reset() first, or step on)", length_));
  begin("prefill", tokens);
  return pass(tokens, /*with_caches=*/false);
}

torch::Tensor Decoder::step(const torch::Tensor& tokens) {
  if (tokens.defined() && tokens.dim() == 2 && tokens.size(1) != 1)
    throw ContractError(
        fmt::format("step: {} tokens a row; allowed: 1 (many: prefill, or sequential)", tokens.size(1)));
  begin("step", tokens);
  return pass(tokens, /*with_caches=*/true);
}

torch::Tensor Decoder::sequential(const torch::Tensor& tokens) {
  check_tokens(tokens, model_->config.vocab);
  std::vector<torch::Tensor> logits;
  for (std::int64_t t = 0; t < tokens.size(1); ++t) logits.push_back(step(tokens.narrow(1, t, 1)));
  return torch::cat(logits, 1);
}

torch::Tensor Decoder::pass(const torch::Tensor& tokens, bool with_caches) {
  const torch::NoGradGuard no_grad;
  const NvtxRange range(model_->runtime->flags.nvtx, with_caches ? "step" : "prefill");
  const auto turn = rotations(length_, tokens.size(1));
  reads_.assign(with_caches ? caches_.size() : 0, {});
  auto logits = model_->through(tokens, [&](BlockImpl& block, std::int64_t index, const Residual& x) {
    return block.around(x, [&](const torch::Tensor& normed) {
      NsaAttentionImpl& attention = *block.attention;
      const auto layer = static_cast<std::size_t>(index);
      const Projected projected = attention.project(normed, turn);
      const Ops table = attention.ops(projected, /*packed=*/false);
      options_.ops.remember(caches_[layer], projected);
      if (with_caches) return attention.finish(attend(attention, table, projected, layer));
      const Compressed blocks = attention.compress(table, projected.k_cmp, projected.v_cmp, {});
      options_.ops.remember_blocks(caches_[layer], blocks);
      return attention.finish(table.attend(attention.attend_args(projected, blocks, {})));
    });
  });
  length_ += tokens.size(1);
  broken_ = false;
  return logits;
}

std::string Decoder::refusal(const Ops& table, const cuda::DecodeArgs& args) const {
  const StepOps& ops = options_.ops;
  if (auto flag = decode_refusal(model_->runtime->flags); !flag.empty()) return flag;
  if (ops.select.replaced() || ops.attend.replaced()) return "a part of the step was replaced";
  if (!ops.attend_all) return "the step has no attention in one";
  if (table.way != AttendWay::in_one) return "attention of a pass goes part by part";
  return cuda::decode_refusal(args);
}

// By our own kernels, which read the caches where they lie.
torch::Tensor Decoder::attend_in_one(const cuda::DecodeArgs& args, const AttendArgs& shown, Reads& reads,
                                     PartRecord& record) const {
  const NvtxRange range(shown.nvtx, "attend");
  const auto made = options_.ops.attend_all(args, [&](std::string_view kernel) {
    record.add({.part = "decode", .way = "cuda", .why = "served", .kernel = std::string(kernel)});
  });
  reads.window = args.k_win.size(2);
  reads.selected = made.selected;
  if (shown.observe) {
    shown.observe("cmp.o", made.cmp);
    shown.observe("blocks", made.blocks);
    shown.observe("sel.o", made.sel);
    shown.observe("win.o", made.win);
  }
  return made.o;
}

// Attention of token t = length_, whose keys and values are in the caches already: the parts read them from there.
torch::Tensor Decoder::attend(NsaAttentionImpl& attention, const Ops& table, const Projected& p, std::size_t layer) {
  const Geometry& g = model_->config.nsa;
  const StepOps& ops = options_.ops;
  LayerCache& cache = caches_[layer];
  Reads& reads = reads_[layer];
  const auto read = [&](const at::Tensor& k, const at::Tensor& v, std::int64_t& count) {
    count = k.size(2);
    return Attended{ops.attend({p.q, k, v}), {}};
  };

  if (p.k_cmp.defined()) {
    if (compressed_blocks(g, length_ + 1) > compressed_blocks(g, length_)) {  // a block ends with this token
      const auto tokens = [&](const Stream& raw) { return raw.last(g.l).transpose(1, 2); };  // [B,l,G,D]
      ops.remember_blocks(cache, attention.compress(table, tokens(cache.k_raw), tokens(cache.v_raw), {}));
    }
    reads.compressed = cache.k_cmp.kept();
  }
  const AttendArgs shown = attention.attend_args(p, {p.k_cmp, p.v_cmp}, {});
  const cuda::DecodeArgs all{p.q,
                             p.gates,
                             cache.k_cmp.rows(),
                             cache.v_cmp.rows(),
                             cache.k_sel.rows(),
                             cache.v_sel.rows(),
                             cache.k_win.rows(),
                             cache.v_win.rows(),
                             length_,
                             g,
                             /*branches=*/static_cast<bool>(shown.observe)};
  PartRecord& record = *model_->runtime->parts;
  const std::string refused = refusal(table, all);
  if (refused.empty()) return attend_in_one(all, shown, reads, record);
  record.add({"decode", "aten", "cuda refused: " + refused});

  const Ops cached(
      table.compress,
      [&](const AttendCompressedArgs&) {
        if (reads.compressed > 0) return read(cache.k_cmp.rows(), cache.v_cmp.rows(), reads.compressed);
        return Attended{at::zeros({p.q.size(0), 1, p.q.size(2), p.v_cmp.size(3)}, p.q.options()), {}};
      },
      [&](const SelectArgs&) {
        return ops.select({p.q, cache.k_cmp.rows(), length_, p.k_sel.size(2), g});
      },
      [&](const AttendSelectedArgs& args) {
        return read(gather_blocks(cache.k_sel.rows(), args.blocks, length_, g),
                    gather_blocks(cache.v_sel.rows(), args.blocks, length_, g), reads.selected);
      },
      [&](const AttendWindowArgs&) { return read(cache.k_win.rows(), cache.v_win.rows(), reads.window); },
      table.combine);
  return attend_in_parts(cached, shown);
}

torch::Tensor Decoder::rotations(std::int64_t first, std::int64_t count) {
  const std::int64_t held = rotations_.defined() ? rotations_.size(0) : 0;
  if (held < first + count) {
    const ModelConfig& config = model_->config;
    rotations_ = rope_rotations(std::max({first + count, 2 * held, options_.capacity}), config.d_k, config.rope_base,
                                model_->runtime->flags.rope_scale, {}, model_->head->weight.options());
  }
  return rotations_.narrow(0, first, count);
}

std::int64_t Decoder::bytes() const {
  std::int64_t sum = rotations_.defined() ? static_cast<std::int64_t>(rotations_.nbytes()) : 0;
  for (const LayerCache& cache : caches_) sum += cache.bytes();
  return sum;
}

}  // namespace nsa::decode
