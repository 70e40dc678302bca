#include "suites/s_sweep/op_choice.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "suites/codes.hpp"

namespace suites::s_sweep_cases {

namespace {

// Number of the block that query t is in. [1,S,1,1]
at::Tensor current_block(const oracle::OpShape& shape, const at::Tensor& like) {
  std::vector<at::Tensor> tokens;
  for (const auto& [begin, end] : nsa::documents(shape.cu_seqlens, shape.S)) {
    tokens.push_back(at::arange(end - begin, like.options().dtype(at::kLong)));
  }
  return at::floor_divide(at::cat(tokens), shape.geometry.l_sel).view({1, -1, 1, 1});
}

// [B,S,G] bool
at::Tensor breaks_a_rule(const at::Tensor& blocks, const at::Tensor& current, std::int64_t n) {
  const auto lacks = [&](const at::Tensor& block) { return blocks.eq(block).sum(-1, true).ne(1); };
  const at::Tensor before = blocks.narrow(-1, 0, n - 1), next = blocks.narrow(-1, 1, n - 1);
  const at::Tensor count = blocks.ge(0).sum(-1, true);
  const at::Tensor out_of_order = next.ge(0).logical_and(next.le(before).logical_or(before.lt(0))).any(-1, true);
  return count.ne((current + 1).clamp_max(n))
      .logical_or(blocks.gt(current).any(-1, true))
      .logical_or(lacks(at::zeros_like(current)))
      .logical_or(lacks(current))
      .logical_or(lacks((current - 1).clamp_min(0)))
      .logical_or(out_of_order)
      .squeeze(-1);
}

}  // namespace

std::optional<probes::Diagnosis> diagnose_choice(const OpInput& input, const std::string& way, const at::Tensor& blocks,
                                                 const at::Tensor& clean) {
  const oracle::OpShape& shape = input.clean.shape;
  const at::Tensor broken = breaks_a_rule(blocks, current_block(shape, blocks), shape.geometry.n_sel);
  const at::Tensor moved = blocks.ne(clean).any(-1);
  const at::Tensor bad = broken.logical_or(moved).logical_and(input.valid_tokens.unsqueeze(-1));
  if (!bad.any().item<bool>()) return std::nullopt;

  const at::Tensor where = bad.nonzero()[0].cpu();
  const auto index = [&](std::int64_t i) { return where[i].item<std::int64_t>(); };
  const at::Tensor row = blocks[index(0)][index(1)][index(2)].to(at::kCPU, at::kLong);
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < row.numel(); ++i) numbers.push_back(row[i].item<std::int64_t>());
  const bool rule = broken[index(0)][index(1)][index(2)].item<bool>();
  return probes::Diagnosis{
      std::string(rule ? codes::kSelectionDiffers : codes::kPoisonLeak),
      fmt::format("select ({}): the blocks of query {} {}", way, index(1),
                  rule ? "break the rules of a choice" : "change with the NaN in padding that it may not see"),
      {{"op", "select"}, {"backend", way}, {"row", index(1)}, {"group", index(2)}, {"blocks", numbers}}};
}

}  // namespace suites::s_sweep_cases
