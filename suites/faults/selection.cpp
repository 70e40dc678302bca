// Mutants of the choice of blocks: the scores that it rests on, the blocks that must be in, ties.
#include <ATen/ATen.h>

#include <cmath>

#include "nsa/reference/reference.hpp"
#include "suites/codes.hpp"
#include "suites/faults/mutants.hpp"
#include "suites/faults/wrapping.hpp"

namespace suites {

namespace selection_mutant {

using at::Tensor;
using nsa::Ops;
using Choosing = nsa::SelectArgs;

constexpr std::int64_t kFar = 1 << 30;  // sorts behind every block

// Numbers that are kFar are taken out: ascending, the tail padded with -1.
Tensor packed(const Tensor& blocks) {
  const Tensor sorted = std::get<0>(blocks.sort(-1));
  return at::where(sorted.ge(kFar), at::full({}, -1, sorted.options()), sorted).to(at::kInt).contiguous();
}
Tensor without(const Tensor& blocks, const Tensor& where) {
  return packed(at::where(where.logical_or(blocks.lt(0)), at::full({}, kFar, blocks.options()), blocks));
}
Tensor row_numbers(const Tensor& blocks) {
  const std::int64_t S = blocks.size(1);
  return at::arange(S, blocks.options()).view({1, S, 1, 1});
}

// Where there is one document, the choice by scores of our own; `probabilities` gives [B,Hq,S,N_c] in fp64.
using Probabilities = std::function<Tensor(const Choosing&)>;
OpsMutation chosen_by(Probabilities probabilities, std::function<Tensor(const Tensor&)> change = nullptr) {
  return instead(&Ops::select, [=](const Choosing& a, const auto& inner) {
    if (a.cu_seqlens || a.k_cmp.size(1) == 0) return inner(a);
    Tensor scores = nsa::reference::importance(probabilities(a), a.geometry, a.k_cmp.size(2), a.q.size(1));
    if (change) scores = change(scores);
    return nsa::reference::choose(scores, a.geometry).to(at::kInt).contiguous();
  });
}
Tensor probabilities(const Choosing& a) {
  return nsa::reference::compressed_probabilities(a.q.to(at::kDouble), a.k_cmp.to(at::kDouble), a.geometry);
}
Tensor scaled_scores(const Choosing& a) {
  const std::int64_t h = a.q.size(2) / a.k_cmp.size(2);
  const Tensor q = a.q.to(at::kDouble).transpose(1, 2),
               k = a.k_cmp.to(at::kDouble).repeat_interleave(h, 2).transpose(1, 2);
  return at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(a.q.size(3)));
}

struct Row {
  const char* name;
  const char* what;
  OpsMutation change;
  const char* found_by = "parity/*op=select*";
};

std::vector<Row> rows() {
  const auto op = &Ops::select;
  return {
      {"select-own-block-lost", "the token's own block is not chosen",
       after(op,
             [](Tensor& blocks, const Choosing& a) {
               if (!a.cu_seqlens)
                 blocks = without(blocks, blocks.eq(row_numbers(blocks).div(a.geometry.l_sel, "floor"))
                                              .logical_and(row_numbers(blocks).ge(a.geometry.l_sel)));
             })},
      {"select-first-block-lost", "block 0 is not chosen",
       after(op,
             [](Tensor& blocks, const Choosing& a) {
               blocks = without(blocks, blocks.eq(0).logical_and(row_numbers(blocks).ge(a.geometry.l_sel)));
             })},
      {"select-one-too-few", "one block less than n is chosen",
       after(op,
             [](Tensor& blocks, const Choosing&) {
               // Of a full row the second, which no rule forces.
               const Tensor place = at::arange(blocks.size(3), blocks.options());
               blocks = without(blocks, place.eq(1).logical_and(blocks.narrow(3, blocks.size(3) - 1, 1).ge(0)));
             })},
      {"select-blocks-of-row-before", "each row has the choice of the row before",
       after(op,
             [](Tensor& blocks, const Choosing& a) {
               if (!a.cu_seqlens && blocks.size(1) > 1)
                 blocks = at::cat({blocks.narrow(1, 0, 1), blocks.narrow(1, 0, blocks.size(1) - 1)}, 1).contiguous();
             })},
      {"select-groups-swapped", "each group has the choice of the next one",
       after(op, [](Tensor& blocks, const Choosing&) { blocks = at::roll(blocks, 1, 2).contiguous(); })},
      {"select-by-first-head", "the scores of a group are those of its first head",
       before(op,
              [](Choosing& a) {
                const std::int64_t G = a.k_cmp.size(2), h = a.q.size(2) / G;
                a.q = a.q.unflatten(2, {G, h}).narrow(3, 0, 1).expand({-1, -1, -1, h, -1}).flatten(2, 3).contiguous();
              })},
      {"select-scale-lost", "the scores of blocks are not divided by sqrt(Dk)",
       before(op, [](Choosing& a) { a.q = a.q * std::sqrt(static_cast<double>(a.q.size(3))); })},
      {"select-scores-see-the-future", "the scores of blocks are normalised over blocks of the future",
       chosen_by([](const Choosing& a) { return at::softmax(scaled_scores(a), -1); })},
      {"select-before-softmax", "blocks are chosen by scores before the softmax", chosen_by(scaled_scores)},
      {"select-ties-to-the-highest", "of equal scores the later block is chosen",
       chosen_by(probabilities,
                 [](const Tensor& scores) { return scores + 1e-9 * at::arange(scores.size(-1), scores.options()); }),
       "parity/equal_scores"},
      {"select-nothing-beyond-512", "beyond 512 tokens all scores are zero, and the last blocks are chosen",
       chosen_by(probabilities,
                 [](const Tensor& scores) {
                   const std::int64_t S = scores.size(1);
                   const Tensor far = at::arange(S, scores.options()).ge(512).view({1, S, 1, 1});
                   const Tensor last = at::arange(scores.size(-1), scores.options());
                   return at::where(far, last.expand_as(scores), scores);
                 }),
       "parity/attention[S=*]"},
      {"select-neighbours-not-added", "a block is scored by the compressed block at its start alone",
       chosen_by([](const Choosing& a) {
         const Tensor p = probabilities(a);
         const std::int64_t stride = a.geometry.l_sel / a.geometry.d;
         return p * at::arange(p.size(3), p.options()).remainder(stride).eq(0).to(at::kDouble);
       })},
      {"select-document-forgotten", "in a packed batch each row has the choice of the row before",
       after(op,
             [](Tensor& blocks, const Choosing& a) {
               if (a.cu_seqlens && blocks.size(1) > 1) {
                 const Tensor first = at::full_like(blocks.narrow(1, 0, 1), -1);
                 const Tensor before = at::cat({first, blocks.narrow(1, 0, blocks.size(1) - 1)}, 1);
                 blocks = without(blocks, blocks.ne(before).logical_and(blocks.gt(0)));
               }
             })},
  };
}

}  // namespace selection_mutant

std::vector<Planted> selection_mutants(const std::shared_ptr<Seams>& seams) {
  std::vector<Planted> all;
  for (const selection_mutant::Row& row : selection_mutant::rows())
    all.push_back(
        {{row.name,
          row.what,
          {std::string(codes::kSelectionDiffers), std::string(codes::kFutureLeak), std::string(codes::kPackedDiffers)},
          plant_in_ops(seams, row.change)},
         "selection",
         row.found_by});
  return all;
}

}  // namespace suites
