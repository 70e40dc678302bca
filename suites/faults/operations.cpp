// Mutants of the ops table's functions: what kernels and their wrappers have been seen to do wrong. Each changes the
// arguments or the result of one function.
#include <ATen/ATen.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "suites/codes.hpp"
#include "suites/faults/mutants.hpp"
#include "suites/faults/wrapping.hpp"

namespace suites {

namespace operation_mutant {

using at::Tensor;
using nsa::Attended;
using nsa::Ops;
using Compressing = nsa::CompressArgs;
using OfBlocks = nsa::AttendCompressedArgs;
using OfChosen = nsa::AttendSelectedArgs;
using OfWindow = nsa::AttendWindowArgs;
using Gating = nsa::CombineArgs;

constexpr double kInf = std::numeric_limits<double>::infinity();

// Rows one later, the first one twice; one earlier, the last one twice. [B,S,...]
Tensor late(const Tensor& t) {
  return t.size(1) < 2 ? t : at::cat({t.narrow(1, 0, 1), t.narrow(1, 0, t.size(1) - 1)}, 1);
}
Tensor early(const Tensor& t) {
  return t.size(1) < 2 ? t : at::cat({t.narrow(1, 1, t.size(1) - 1), t.narrow(1, t.size(1) - 1, 1)}, 1);
}

// Head j as if it belonged to group j % G instead of j / h.
Tensor to_modulo(const Tensor& t, std::int64_t G, std::int64_t heads_dim) {
  const std::int64_t h = t.size(heads_dim) / G;
  return t.unflatten(heads_dim, {h, G}).transpose(heads_dim, heads_dim + 1).flatten(heads_dim, heads_dim + 1);
}
Tensor from_modulo(const Tensor& t, std::int64_t G, std::int64_t heads_dim) {
  const std::int64_t h = t.size(heads_dim) / G;
  return t.unflatten(heads_dim, {G, h}).transpose(heads_dim, heads_dim + 1).flatten(heads_dim, heads_dim + 1);
}
const Tensor& keys_of(const OfWindow& args) { return args.k; }
const Tensor& keys_of(const OfChosen& args) { return args.k; }
const Tensor& keys_of(const OfBlocks& args) { return args.kv.k; }

template <typename Args>
OpsMutation groups_by_modulo(nsa::OpFunction<Attended, Args> Ops::*op) {
  return instead(op, [](const Args& args, const auto& inner) {
    const std::int64_t G = keys_of(args).size(2);
    Args own = args;
    own.q = to_modulo(args.q, G, 2);
    Attended out = inner(own);
    out.o = from_modulo(out.o, G, 2);
    if (out.lse.defined()) out.lse = from_modulo(out.lse, G, 1);
    return out;
  });
}

template <typename Args>
OpsMutation scale_lost(nsa::OpFunction<Attended, Args> Ops::*op) {
  return before(op, [](Args& args) { args.q = args.q * std::sqrt(static_cast<double>(args.q.size(3))); });
}
template <typename Args>
OpsMutation nan_hidden(nsa::OpFunction<Attended, Args> Ops::*op) {
  return after(op, [](Attended& out, const Args&) { out.o = at::nan_to_num(out.o); });
}
template <typename Args>
OpsMutation output_detached(nsa::OpFunction<Attended, Args> Ops::*op) {
  return after(op, [](Attended& out, const Args&) { out.o = out.o.detach(); });
}
template <typename Args>
OpsMutation output_times(nsa::OpFunction<Attended, Args> Ops::*op, double factor) {
  return after(op, [factor](Attended& out, const Args&) { out.o = out.o * factor; });
}
// What fp32 holds is rounded to bf16 on the way out.
template <typename Args>
OpsMutation output_rounded(nsa::OpFunction<Attended, Args> Ops::*op) {
  return after(op, [](Attended& out, const Args&) { out.o = out.o.to(at::kBFloat16).to(out.o.scalar_type()); });
}

// The same number of every row, from the number of its document. [S]
Tensor document_of(const nsa::CuSeqlens& cu_seqlens, std::int64_t S) {
  Tensor number = at::zeros({S}, at::kLong);
  std::int64_t next = 0;
  for (const auto& [begin, end] : nsa::documents(cu_seqlens, S)) number.slice(0, begin, end).fill_(next++);
  return number;
}

// Attention as one would write it down: what is not visible gets `hidden`, and the maximum is subtracted or not.
Attended plainly(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& visible, double hidden,
                 bool subtract_maximum = true) {
  const auto type = nsa::accumulation_type(q.scalar_type());
  const std::int64_t h = q.size(2) / k.size(2);
  const auto heads = [&](const Tensor& t) { return t.to(type).repeat_interleave(h, 2).transpose(1, 2); };
  const Tensor scores = at::matmul(q.to(type).transpose(1, 2), heads(k).transpose(2, 3)) /
                        std::sqrt(static_cast<double>(q.size(3)));  // [B,Hq,S,T]
  const Tensor masked = at::where(visible.to(q.device()), scores, at::full({}, hidden, scores.options()));
  Tensor p;
  if (subtract_maximum) {
    p = at::softmax(masked, -1);
  } else {
    const Tensor e = at::exp(masked);
    p = e / e.sum(-1, true);
  }
  return {at::matmul(p, heads(v)).transpose(1, 2).to(q.scalar_type()), at::logsumexp(masked, -1), {}};
}

Tensor in_window(const OfWindow& args) {
  const std::int64_t S = args.q.size(1);
  const Tensor t = at::arange(S), document = document_of(args.cu_seqlens, S);
  const Tensor distance = t.unsqueeze(1) - t.unsqueeze(0);
  return (distance >= 0) & (distance < args.geometry.w) & (document.unsqueeze(1) == document.unsqueeze(0));
}

Attended masked_by_ten_thousand(const OfWindow& args) { return plainly(args.q, args.k, args.v, in_window(args), -1e4); }
Attended softmax_without_maximum(const OfWindow& args) {
  return plainly(args.q, args.k, args.v, in_window(args), -kInf, false);
}

// Every row sees only the first key of its window: what a causal mask that is aligned top-left gives one query.
Attended first_key_only(const OfWindow& args) {
  const std::int64_t S = args.q.size(1);
  const Tensor t = at::arange(S), visible = in_window(args);
  const Tensor first = visible.to(at::kLong).argmax(1);
  return plainly(args.q, args.k, args.v, first.unsqueeze(1) == t.unsqueeze(0), -kInf);
}

// "True" taken for "hidden": each row sees itself and the future.
Attended mask_inverted(const OfWindow& args) {
  return plainly(args.q, args.k, args.v, in_window(args).transpose(0, 1), -kInf);
}

// Block i is seen by the tokens from i*d + l - 1 - `too_early` on; only where there is one document.
OpsMutation blocks_seen_early(std::int64_t blocks) {
  return instead(&Ops::attend_compressed, [blocks](const OfBlocks& args, const auto& inner) {
    const std::int64_t S = args.q.size(1), N = args.kv.k.size(1);
    if (args.cu_seqlens || N == 0) return inner(args);
    const Tensor t = at::arange(S).unsqueeze(1), i = at::arange(N).unsqueeze(0);
    const Tensor visible = i * args.geometry.d + args.geometry.l - 1 - blocks * args.geometry.d <= t;
    Attended out = plainly(args.q, args.kv.k, args.kv.v, visible, -kInf);
    const Tensor empty = visible.any(1).logical_not().view({1, S, 1, 1}).to(args.q.device());
    out.o = at::where(empty, at::zeros({}, out.o.options()), out.o);
    return out;
  });
}

// The rows that see no block get the first one, as a guard that forces a key and forgets to clear the output does.
OpsMutation empty_rows_see_the_first() {
  return after(&Ops::attend_compressed, [](Attended& out, const OfBlocks& args) {
    if (args.cu_seqlens || args.kv.v.size(1) == 0) return;
    const std::int64_t S = args.q.size(1), h = args.q.size(2) / args.kv.v.size(2);
    const Tensor empty = (at::arange(S) < args.geometry.l - 1).view({1, S, 1, 1}).to(out.o.device());
    out.o = at::where(empty, args.kv.v.narrow(1, 0, 1).repeat_interleave(h, 2), out.o);
  });
}

// The mean over all but the last token of a block; only where there is one document.
Tensor mean_without_last(const Tensor& x, const nsa::Geometry& g) {
  return x.unfold(1, g.l, g.d).narrow(-1, 0, g.l - 1).mean(-1);  // [B,N_c,G,D]
}
OpsMutation last_token_not_pooled() {
  return after(&Ops::compress, [](nsa::Compressed& out, const Compressing& args) {
    if (args.cu_seqlens || args.phi_k || args.geometry.l < 2 || args.k.size(1) < args.geometry.l) return;
    out = {mean_without_last(args.k, args.geometry), mean_without_last(args.v, args.geometry)};
  });
}

// Block numbers of a packed batch counted from the batch's start, not from the document's: the block before.
OpsMutation blocks_of_other_documents() {
  return before(&Ops::attend_compressed, [](OfBlocks& args) {
    if (args.cu_seqlens) args.kv = {late(args.kv.k), late(args.kv.v)};
  });
}

// dK as if the heads of a group were not summed: the first one's share alone.
OpsMutation key_gradient_of_first_head() {
  return before(&Ops::attend_window, [](OfWindow& args) {
    const std::int64_t h = args.q.size(2) / args.k.size(2);
    const auto first = [h](const Tensor& t) {
      std::vector<Tensor> heads(static_cast<std::size_t>(h), t.detach());
      heads.front() = t;
      return at::stack(heads, 3).flatten(2, 3);
    };
    if (h == 1) return;
    args.k = first(args.k);
    args.v = args.v.repeat_interleave(h, 2);
  });
}

Tensor with_gradient_of(const Tensor& t, std::function<Tensor(const Tensor&)> change) {
  if (!t.defined() || !t.requires_grad()) return t;
  Tensor own = t.alias();
  own.register_hook([change = std::move(change)](const Tensor& gradient) { return change(gradient); });
  return own;
}

// A wait that is missing: a few launches in a hundred read what is not there yet.
OpsMutation rarely_wrong(std::int64_t one_in) {
  const auto calls = std::make_shared<std::atomic<std::int64_t>>(0);
  return after(&Ops::attend_selected, [calls, one_in](Attended& out, const OfChosen&) {
    if (++*calls % one_in == 0) out.o = out.o * 1.5;
  });
}

struct Row {
  const char* name;
  const char* what;
  std::vector<std::string_view> codes;
  OpsMutation change;
  const char* found_by = nullptr;  // else the function's own cases
  const char* group = "kernels";
};

std::vector<Row> window_rows() {
  const auto op = &Ops::attend_window;
  const std::vector<std::string_view> output = {codes::kOutputBudget}, leak = {codes::kFutureLeak},
                                      wrong_width = {codes::kOutputBudget, codes::kIdentity, codes::kForeignKey};
  return {
      {"window-one-wider", "the window holds w + 1 tokens", wrong_width,
       before(op, [](OfWindow& a) { ++a.geometry.w; })},
      {"window-one-narrower", "the window holds w - 1 tokens", wrong_width,
       before(op, [](OfWindow& a) { a.geometry.w = std::max<std::int64_t>(1, a.geometry.w - 1); })},
      {"window-half", "the window holds w / 2 tokens, as a loop that ends after its first tile does", wrong_width,
       before(op, [](OfWindow& a) { a.geometry.w = std::max<std::int64_t>(1, a.geometry.w / 2); })},
      {"window-without-end", "the window holds every token before", wrong_width,
       before(op, [](OfWindow& a) { a.geometry.w = a.q.size(1); })},
      {"window-first-key", "each row of the window attends to the first key alone", output,
       instead(op, [](const OfWindow& a, const auto&) { return first_key_only(a); })},
      {"window-mask-inverted", "the window's mask hides the past and shows the future", leak,
       instead(op, [](const OfWindow& a, const auto&) { return mask_inverted(a); })},
      {"window-keys-late", "the window's keys and values are those of the token before", output,
       before(op, [](OfWindow& a) { a.k = late(a.k), a.v = late(a.v); })},
      {"window-keys-early", "the window's keys are those of the token after", leak,
       before(op, [](OfWindow& a) { a.k = early(a.k); })},
      {"window-scale-lost", "the window's scores are not divided by sqrt(Dk)", output, scale_lost(op)},
      {"window-groups-by-modulo", "the window's head j reads group j % G", output, groups_by_modulo(op)},
      {"window-heads-swapped", "two heads of the window's output are swapped", output,
       after(op,
             [](Attended& out, const OfWindow&) {
               std::vector<Tensor> heads = out.o.unbind(2);
               std::swap(heads.front(), heads.back());
               out.o = at::stack(heads, 2);
             })},
      {"window-last-row-lost", "the window's last row is zero", output,
       after(op,
             [](Attended& out, const OfWindow&) {
               const std::int64_t S = out.o.size(1);
               out.o = out.o * at::arange(S, out.o.options()).ne(S - 1).view({1, S, 1, 1}).to(out.o.scalar_type());
             })},
      {"window-nan-hidden",
       "NaN in the window's output is replaced by 0",
       {codes::kNonFiniteMask, codes::kHiddenNonFinite},
       nan_hidden(op)},
      {"window-rounded", "the window's output is rounded to bf16 on the way", output, output_rounded(op)},
      {"window-documents-ignored",
       "the window looks into the document before",
       {codes::kPackedDiffers, codes::kFutureLeak},
       before(op, [](OfWindow& a) { a.cu_seqlens.reset(); })},
      {"window-masked-by-ten-thousand",
       "what the window hides gets -10000 instead of -inf",
       {codes::kOutputBudget, codes::kFutureLeak, codes::kIdentity},
       instead(op, [](const OfWindow& a, const auto&) { return masked_by_ten_thousand(a); }),
       "parity,s_sweep"},
      {"window-softmax-overflows",
       "the window's softmax does not subtract the maximum",
       {codes::kNonFiniteForward, codes::kLengthPattern, codes::kOutputBudget, codes::kNonFiniteMask},
       instead(op, [](const OfWindow& a, const auto&) { return softmax_without_maximum(a); }),
       "s_sweep",
       "anomalies"},
      {"window-dk-first-head",
       "dK of the window has the share of each group's first head alone",
       {codes::kGradientBudget, codes::kGradcheck},
       key_gradient_of_first_head(),
       nullptr,
       "autograd"},
      {"window-dv-lost",
       "dV of the window is zero",
       {codes::kGradientBudget, codes::kNoGradient, codes::kGradcheck},
       before(op, [](OfWindow& a) { a.v = a.v.detach(); }),
       "autograd",
       "autograd"},
      {"window-dq-nan-at-64-of-128",
       "dQ of the window holds a NaN where S % 128 = 64",
       {codes::kNonFiniteBackward, codes::kLengthPattern},
       before(op,
              [](OfWindow& a) {
                if (a.q.size(1) % 128 != 64) return;
                a.q =
                    with_gradient_of(a.q, [](const Tensor& g) { return g * std::numeric_limits<double>::quiet_NaN(); });
              }),
       "s_sweep",
       "anomalies"},
      {"window-dq-scaled",
       "dQ of the window misses its factor 1/sqrt(Dk)",
       {codes::kGradientBudget, codes::kGradcheck},
       before(op,
              [](OfWindow& a) {
                const double root = std::sqrt(static_cast<double>(a.q.size(3)));
                a.q = with_gradient_of(a.q, [root](const Tensor& g) { return g * root; });
              }),
       "autograd",
       "autograd"},
  };
}

std::vector<Row> compressed_rows() {
  const auto op = &Ops::attend_compressed;
  const std::vector<std::string_view> output = {codes::kOutputBudget}, leak = {codes::kFutureLeak};
  return {
      {"compressed-sees-next-block", "a compressed block is seen one stride before it is complete", leak,
       blocks_seen_early(1)},
      {"compressed-sees-all", "every row sees every compressed block", leak, blocks_seen_early(1 << 20)},
      {"compressed-block-late", "a compressed block is seen one stride late", output, blocks_seen_early(-1)},
      {"compressed-empty-rows-forced",
       "rows that see no compressed block get the first one's value",
       {codes::kOutputBudget, codes::kFutureLeak},
       empty_rows_see_the_first()},
      {"compressed-scale-lost", "the compressed branch's scores are not divided by sqrt(Dk)", output, scale_lost(op)},
      {"compressed-groups-by-modulo", "the compressed branch's head j reads group j % G", output, groups_by_modulo(op)},
      {"compressed-nan-hidden",
       "NaN in the compressed branch's output is replaced by 0",
       {codes::kNonFiniteMask, codes::kHiddenNonFinite},
       nan_hidden(op)},
      {"compressed-off-a-little", "the compressed branch is 0.1 % too large", output, output_times(op, 1.001)},
      {"compressed-documents-shifted",
       "a document's compressed blocks are counted from the wrong base",
       {codes::kPackedDiffers},
       blocks_of_other_documents()},
      {"compressed-output-detached",
       "the compressed branch's output is cut from the graph",
       {codes::kGraphBreak, codes::kNoGradient, codes::kGradcheck},
       output_detached(op),
       "autograd",
       "autograd"},
  };
}

std::vector<Row> compress_rows() {
  const auto op = &Ops::compress;
  const std::vector<std::string_view> output = {codes::kOutputBudget}, leak = {codes::kFutureLeak};
  return {
      {"compress-last-token-lost", "a block's mean leaves out its last token", output, last_token_not_pooled()},
      {"compress-one-token-late", "blocks begin one token late, and hold one of the future", leak,
       before(op, [](Compressing& a) { a.k = early(a.k), a.v = early(a.v); })},
      {"compress-values-from-keys", "compressed values are made of the keys", output,
       after(op,
             [](nsa::Compressed& out, const Compressing& a) {
               if (a.k.sizes() == a.v.sizes()) out.v = out.k;
             }),
       "parity/whole_step*"},
      {"compress-position-ignored", "learned compression adds no position", output,
       before(op,
              [](Compressing& a) {
                if (a.phi_k) a.phi_k->position = at::zeros_like(a.phi_k->position);
              })},
      {"compress-rounded", "compressed keys are rounded to bf16", output,
       after(op, [](nsa::Compressed& out,
                    const Compressing&) { out.k = out.k.to(at::kBFloat16).to(out.k.scalar_type()); })},
      {"compress-documents-ignored",
       "blocks lie across the borders of documents",
       {codes::kPackedDiffers, codes::kOutputBudget, codes::kFutureLeak},
       instead(op,
               [](const Compressing& a, const auto& inner) {
                 nsa::Compressed own = inner(a);
                 if (!a.cu_seqlens) return own;
                 Compressing whole = a;
                 whole.cu_seqlens.reset();
                 const nsa::Compressed all = inner(whole);
                 const std::int64_t N = std::min(own.k.size(1), all.k.size(1)), rest = own.k.size(1) - N;
                 const auto first = [&](const Tensor& of_all, const Tensor& of_own) {
                   return at::cat({of_all.narrow(1, 0, N), of_own.narrow(1, N, rest)}, 1);
                 };
                 return nsa::Compressed{first(all.k, own.k), first(all.v, own.v)};
               })},
      {"compress-values-detached",
       "compressed values are cut from the graph",
       {codes::kNoGradient, codes::kGraphBreak, codes::kGradcheck},
       after(op, [](nsa::Compressed& out, const Compressing&) { out.v = out.v.detach(); }),
       "autograd",
       "autograd"},
      {"compress-dk-halved",
       "the gradient of the keys before compression is half of what it must be",
       {codes::kGradientBudget, codes::kGradcheck},
       before(op, [](Compressing& a) { a.k = with_gradient_of(a.k, [](const Tensor& g) { return g * 0.5; }); }),
       "autograd",
       "autograd"},
  };
}

// The blocks of every row but the last that is told.
Tensor without_last_block(const Tensor& blocks) {
  const Tensor place = at::arange(blocks.size(3), blocks.options().dtype(at::kLong));
  const Tensor count = blocks.ge(0).sum(-1, true);
  return at::where(place.eq(count - 1).logical_and(count.gt(1)), at::full({}, -1, blocks.options()), blocks);
}

std::vector<Row> selected_rows() {
  const auto op = &Ops::attend_selected;
  const std::vector<std::string_view> output = {codes::kOutputBudget}, leak = {codes::kFutureLeak};
  return {
      {"selected-first-block-only", "of the chosen blocks only the first is read", output,
       before(op,
              [](OfChosen& a) {
                a.blocks = a.blocks.clone();
                a.blocks.slice(3, 1).fill_(-1);
              })},
      {"selected-last-block-lost", "the last chosen block, the token's own, is not read", output,
       before(op, [](OfChosen& a) { a.blocks = without_last_block(a.blocks); })},
      {"selected-reads-next-value", "the selected branch reads the value of the token after each key", leak,
       before(op, [](OfChosen& a) { a.v = early(a.v); })},
      {"selected-blocks-of-row-before", "each row reads the blocks that the row before has chosen", output,
       before(op, [](OfChosen& a) { a.blocks = late(a.blocks).contiguous(); })},
      {"selected-short-blocks",
       "a chosen block is taken for l tokens long instead of l'",
       {codes::kOutputBudget, codes::kForeignKey},
       before(op, [](OfChosen& a) { a.geometry.l_sel = a.geometry.l; })},
      {"selected-scale-lost", "the selected branch's scores are not divided by sqrt(Dk)", output, scale_lost(op)},
      {"selected-groups-by-modulo", "the selected branch's head j reads group j % G", output, groups_by_modulo(op)},
      {"selected-group-blocks-swapped", "each group reads the blocks of the next one", output,
       before(op, [](OfChosen& a) { a.blocks = at::roll(a.blocks, 1, 2).contiguous(); })},
      {"selected-nan-hidden",
       "NaN in the selected branch's output is replaced by 0",
       {codes::kNonFiniteMask, codes::kHiddenNonFinite},
       nan_hidden(op)},
      {"selected-documents-ignored",
       "block numbers of a packed batch are counted from its start",
       {codes::kPackedDiffers, codes::kFutureLeak},
       before(op, [](OfChosen& a) { a.cu_seqlens.reset(); })},
      {"selected-wrong-once-in-50",
       "one call in fifty of the selected branch is wrong",
       {codes::kOutputBudget, codes::kGradientBudget, codes::kNonFiniteOnce, codes::kTrainingRepeats},
       rarely_wrong(50),
       "parity"},
      {"selected-wrong-once-in-1000",
       "one call in a thousand of the selected branch is wrong",
       {codes::kOutputBudget, codes::kGradientBudget, codes::kNonFiniteOnce, codes::kTrainingRepeats},
       rarely_wrong(1000),
       "parity"},
      {"selected-dk-huge-when-shared",
       "dK of a block that several rows chose is a thousand times too large",
       {codes::kGradientBudget, codes::kGradcheck},
       before(op,
              [](OfChosen& a) {
                a.k = with_gradient_of(a.k, [l = a.geometry.l_sel](const Tensor& g) {
                  Tensor own = g.clone();
                  own.slice(1, 0, l).mul_(1000);  // block 0, which every row has chosen
                  return own;
                });
              }),
       "autograd",
       "autograd"},
      {"selected-keys-detached",
       "the selected branch's keys are cut from the graph",
       {codes::kNoGradient, codes::kGraphBreak, codes::kGradcheck},
       before(op, [](OfChosen& a) { a.k = a.k.detach(); }),
       "autograd",
       "autograd"},
  };
}

std::vector<Row> combine_rows() {
  const auto op = &Ops::combine;
  const std::vector<std::string_view> output = {codes::kOutputBudget};
  const auto gates = [op](std::function<Tensor(const Tensor&)> change) {
    return before(op, [change = std::move(change)](Gating& a) { a.gates = change(a.gates); });
  };
  return {
      {"combine-gates-swapped", "the gates of the compressed and the selected branch are swapped", output,
       gates([](const Tensor& g) {
         return at::cat({g.narrow(3, 1, 1), g.narrow(3, 0, 1), g.narrow(3, 2, 1)}, 3);
       })},
      {"combine-gates-of-next-group", "each group uses the gates of the next one", output,
       gates([](const Tensor& g) { return at::roll(g, 1, 2); })},
      {"combine-gates-of-row-before", "each row uses the gates of the row before", output,
       gates([](const Tensor& g) { return late(g); })},
      {"combine-window-lost", "the window's branch is left out of the sum", output,
       before(op, [](Gating& a) { a.o_win = at::zeros_like(a.o_win); })},
      {"combine-gates-rounded", "gates are rounded to bf16 on the way", output,
       gates([](const Tensor& g) { return g.to(at::kBFloat16).to(g.scalar_type()); })},
      {"combine-gates-uniform",
       "every branch is mixed by 1/3",
       {codes::kOutputBudget, codes::kFlagIgnored, codes::kNoGradient},
       gates([](const Tensor& g) { return at::full_like(g, 1.0 / 3); })},
      {"combine-gates-detached",
       "gates are cut from the graph",
       {codes::kNoGradient, codes::kGraphBreak, codes::kGradcheck},
       gates([](const Tensor& g) { return g.detach(); }),
       "autograd",
       "autograd"},
      {"combine-nan-hidden",
       "NaN in the sum of the branches is replaced by 0",
       {codes::kNonFiniteMask, codes::kHiddenNonFinite},
       after(op, [](Tensor& out, const Gating&) { out = at::nan_to_num(out); })},
  };
}

}  // namespace operation_mutant

std::vector<Planted> operation_mutants(const std::shared_ptr<Seams>& seams) {
  namespace m = operation_mutant;
  // Every backend's and dtype's: against the oracle, causality, packed batches, hostile contents.
  const std::vector<std::pair<const char*, std::vector<m::Row>>> parts = {
      {"parity/*op=attend_window*", m::window_rows()}, {"parity/*op=attend_compressed*", m::compressed_rows()},
      {"parity/*op=compress*", m::compress_rows()},    {"parity/*op=attend_selected*", m::selected_rows()},
      {"parity/*op=combine*", m::combine_rows()},
  };
  std::vector<Planted> all;
  for (const auto& [cases, rows] : parts)
    for (const m::Row& row : rows)
      all.push_back({{row.name, row.what, {row.codes.begin(), row.codes.end()}, plant_in_ops(seams, row.change)},
                     row.group,
                     row.found_by != nullptr ? row.found_by : cases});
  return all;
}

}  // namespace suites
