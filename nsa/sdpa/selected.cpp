// Attention over the chosen blocks: gathered (packed, packed_safe) or by a mask over all keys.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "nsa/route.hpp"
#include "nsa/sdpa/rows.hpp"
#include "nsa/sdpa/sdpa.hpp"

namespace nsa::sdpa {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool gradients_needed(const AttendSelectedArgs& args) {
  return at::GradMode::is_enabled() && (args.q.requires_grad() || args.k.requires_grad() || args.v.requires_grad());
}

// ---- by mask ------------------------------------------------------------------------------------------------------

// Which of the tokens before `end` the rows [begin, end) see, given their blocks [B,end-begin,G,n].
// [B*G,1,end-begin,end]
at::Tensor visible_tokens(const at::Tensor& blocks, std::int64_t begin, std::int64_t end, const Geometry& g) {
  const std::int64_t B = blocks.size(0), T = blocks.size(1), G = blocks.size(2), N_sel = selection_blocks(g, end);
  const auto number = blocks.to(at::kLong);
  const auto place =
      number.masked_fill(number.lt(0).logical_or(number.ge(N_sel)), N_sel);  // the last column is the bin
  const auto chosen = at::zeros({B, T, G, N_sel + 1}, blocks.options().dtype(at::kBool)).scatter_(3, place, true);
  const auto tokens =
      chosen.narrow(3, 0, N_sel).unsqueeze(4).expand({-1, -1, -1, -1, g.l_sel}).flatten(3).narrow(3, 0, end);
  const auto causal = at::ones({T, end}, chosen.options()).tril(begin);
  return tokens.transpose(1, 2).logical_and(causal).reshape({B * G, 1, T, end});
}

// One document, a chunk of queries at a time against the keys up to its end. The mask differs from group to group, so
// groups become the batch and a group's heads share one mask and, by a stride of 0, one K and V.
at::Tensor attend_masked(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& blocks,
                         const Geometry& g, std::int64_t mask_elements) {
  const std::int64_t B = q.size(0), S = q.size(1), Hq = q.size(2), G = k.size(2), h = Hq / G;
  const auto by_group = [&](const at::Tensor& t) { return t.transpose(1, 2).reshape({B * G, -1, S, t.size(3)}); };
  const auto rows = by_group(q), keys = by_group(k), values = by_group(v);
  const std::int64_t chunk = std::max<std::int64_t>(1, mask_elements / S);
  std::vector<at::Tensor> parts;
  for (std::int64_t begin = 0; begin < S; begin += chunk) {
    const std::int64_t end = std::min(begin + chunk, S);
    const auto visible = visible_tokens(blocks.narrow(1, begin, end - begin), begin, end, g);
    const auto row_sees = visible.any(-1, /*keepdim=*/true);
    const auto shared = [&](const at::Tensor& t) { return t.narrow(2, 0, end).expand({-1, h, -1, -1}); };
    // An empty row attends to everything and is cleared afterwards (double where: finite both ways).
    const auto o = attend(rows.narrow(2, begin, end - begin), shared(keys), shared(values),
                          visible.logical_or(row_sees.logical_not()));
    parts.push_back(at::where(row_sees, o, 0.0));
  }
  return (parts.size() == 1 ? parts.front() : at::cat(parts, 2)).reshape({B, Hq, S, v.size(3)}).transpose(1, 2);
}

// ---- by gathering -------------------------------------------------------------------------------------------------

// Note [Padding rows]
// K and V get n*l' rows of zeros at their end, and every place that a query must not see (padding of the block table,
// tokens after the query) is gathered from there, never from a live row: it cannot carry a NaN, and its gradient goes
// to a row that is dropped. There are n*l' of them so that gradients of many queries do not meet at one address. A
// query that sees nothing attends to zero rows only: output exactly 0, gradients exactly 0.

// What rows [first, first + count) of the B*S*G rows read. `live` is how many rows of K come before the zeros.
struct Places {
  at::Tensor index;    // [count, blocks*l'] int64, rows of K
  at::Tensor visible;  // [count, blocks*l'] bool
};
at::TensorOptions row_options(const at::Tensor& like) {
  return at::TensorOptions().dtype(at::kLong).device(like.device());
}

class PlaceTable {
 public:
  explicit PlaceTable(const AttendSelectedArgs& args)
      : l_sel_(args.geometry.l_sel), live_(args.k.size(0) * args.k.size(1) * args.k.size(2)) {
    const std::int64_t B = args.q.size(0), S = args.q.size(1), G = args.k.size(2);
    std::vector<at::Tensor> begins;
    std::int64_t longest = 0;
    for (const auto& [begin, end] : documents(args.cu_seqlens, S)) {
      begins.push_back(at::full({end - begin}, begin, row_options(args.q)));
      longest = std::max(longest, end - begin);
    }
    const std::int64_t columns =
        std::min(args.geometry.n_sel, selection_blocks(args.geometry, longest));  // the rest is -1
    blocks_ = args.blocks.reshape({B * S * G, -1}).narrow(1, 0, columns).to(at::kLong);
    const auto row = positions(0, B * S * G, args.q);
    group_ = row.remainder(G);
    const auto batch_and_token = at::floor_divide(row, G);
    token_ = batch_and_token.remainder(S);
    batch_start_ = (batch_and_token - token_);  // b*S
    begin_ = at::cat(begins).index_select(0, token_);
    groups_ = G;
  }

  [[nodiscard]] std::int64_t columns() const { return blocks_.size(1) * l_sel_; }

  [[nodiscard]] Places rows(std::int64_t first, std::int64_t count) const {
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, count).unsqueeze(1); };
    const auto blocks = blocks_.narrow(0, first, count);
    // Ascending, so a number that stands twice stands beside itself; it counts once.
    auto usable = blocks.ge(0);
    if (blocks.size(1) > 1) usable.narrow(1, 1, blocks.size(1) - 1).logical_and_(blocks.diff(1, 1).ne(0));
    const auto offset = positions(0, l_sel_, blocks);
    const auto token = (blocks * l_sel_ + part(begin_)).unsqueeze(2) + offset;  // [count, blocks, l']
    const auto visible = token.le(part(token_).unsqueeze(2)).logical_and(usable.unsqueeze(2)).flatten(1);
    const auto live = (token.flatten(1) + part(batch_start_)) * groups_ + part(group_);
    return {at::where(visible, live, positions(live_, columns(), blocks)), visible};
  }

 private:
  std::int64_t l_sel_, live_, groups_ = 1;
  at::Tensor blocks_;                               // [rows, blocks]
  at::Tensor group_, token_, batch_start_, begin_;  // [rows]
};

// [B,S,G,D] -> [B*S*G + zeros, D]
at::Tensor with_zero_rows(const at::Tensor& x, std::int64_t zeros) {
  return at::constant_pad_nd(x.reshape({-1, x.size(3)}), {0, 0, 0, zeros});
}

// index_select whose gradient is summed in fp32: block 0 is gathered by every query, and thousands of terms do not add
// up in bf16. `wide` is `rows` in the accumulation type and only carries the gradient.
struct Gather : torch::autograd::Function<Gather> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& wide, const at::Tensor& rows,
                            const at::Tensor& index) {
    context->save_for_backward({index});
    context->saved_data["rows"] = rows.size(0);
    context->saved_data["type"] = static_cast<std::int64_t>(wide.scalar_type());
    return rows.index_select(0, index);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto& gradient = gradients[0];
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    auto sum = at::zeros({context->saved_data["rows"].toInt(), gradient.size(1)}, gradient.options().dtype(type));
    sum.index_add_(0, context->get_saved_variables()[0], gradient.to(type));
    return {sum, {}, {}};
  }
};

// Gathered rows in fresh tensors.
class FreshRows {
 public:
  explicit FreshRows(const at::Tensor& rows) : rows_(rows), wide_(rows.to(accumulation_type(rows.scalar_type()))) {}
  at::Tensor operator()(const at::Tensor& index) const {
    return Gather::apply(wide_, rows_.detach(), index.flatten()).view({index.size(0), 1, index.size(1), rows_.size(1)});
  }

 private:
  at::Tensor rows_, wide_;
};

// Note [Reused workspace]
// One buffer for K and one for V a thread, overwritten by every chunk and every call, kept at the largest size so far.
// Whoever uses it must be on one stream and have nothing saved for a backward pass.
class WorkspaceRows {
 public:
  WorkspaceRows(const at::Tensor& rows, at::Tensor& buffer) : rows_(rows.detach()), buffer_(buffer) {}
  at::Tensor operator()(const at::Tensor& index) const {
    const std::int64_t width = rows_.size(1), needed = index.numel() * width;
    const bool fits = buffer_.defined() && buffer_.device() == rows_.device() &&
                      buffer_.scalar_type() == rows_.scalar_type() && buffer_.numel() >= needed;
    if (!fits) {
      const c10::InferenceMode normal(false);  // a buffer that any later call may write
      buffer_ = at::Tensor();                  // first give back, then take
      buffer_ = at::empty({needed}, rows_.options());
    }
    auto out = buffer_.narrow(0, 0, needed).view({index.numel(), width});
    at::index_select_out(out, rows_, 0, index.flatten());
    return out.view({index.size(0), 1, index.size(1), width});
  }

 private:
  at::Tensor rows_;
  at::Tensor& buffer_;
};

template <typename Rows>
at::Tensor attend_gathered(const AttendSelectedArgs& args, const PlaceTable& table, const Rows& keys,
                           const Rows& values) {
  const std::int64_t B = args.q.size(0), S = args.q.size(1), G = args.k.size(2), h = args.q.size(2) / G;
  const std::int64_t total = B * S * G;
  const auto q = args.q.reshape({total, 1, h, args.q.size(3)});
  std::vector<at::Tensor> parts;
  for (std::int64_t first = 0; first < total; first += kGatherChunkRows) {
    const std::int64_t count = std::min(kGatherChunkRows, total - first);
    const auto [index, visible] = table.rows(first, count);
    const auto mask = visible.logical_or(visible.any(-1, true).logical_not()).view({count, 1, 1, -1});
    parts.push_back(attend(q.narrow(0, first, count), keys(index), values(index), mask));
  }
  return (parts.size() == 1 ? parts.front() : at::cat(parts)).reshape({B, S, G * h, args.v.size(3)});
}

}  // namespace

Attended attend_selected(const AttendSelectedArgs& args, Selection how, std::int64_t mask_elements) {
  check(args);
  if (how == Selection::masked) {
    const auto o = per_document(args.cu_seqlens, args.q.size(1), [&](std::int64_t begin, std::int64_t S) {
      return attend_masked(args.q.narrow(1, begin, S), args.k.narrow(1, begin, S), args.v.narrow(1, begin, S),
                           args.blocks.narrow(1, begin, S), args.geometry, mask_elements);
    });
    return {o, {}};
  }
  const PlaceTable table(args);
  const auto k = with_zero_rows(args.k, table.columns()), v = with_zero_rows(args.v, table.columns());
  if (how == Selection::packed_safe) return {attend_gathered(args, table, FreshRows(k), FreshRows(v)), {}};

  if (gradients_needed(args))
    throw ContractError(
        "attend_selected: `packed` was asked for with gradients needed; allowed: `packed_safe` or `masked`, because "
        "`packed` writes into a workspace that it reuses");
  thread_local at::Tensor key_buffer, value_buffer;
  return {attend_gathered(args, table, WorkspaceRows(k, key_buffer), WorkspaceRows(v, value_buffer)), {}};
}

}  // namespace nsa::sdpa
