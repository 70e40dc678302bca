// Mutants of a decoding step.
#include <ATen/ATen.h>

#include <cmath>

#include "suites/codes.hpp"
#include "suites/faults/mutants.hpp"

namespace suites {

namespace decoding_mutant {

using at::Tensor;
using nsa::decode::LayerCache;
using nsa::decode::StepAttendArgs;
using nsa::decode::StepOps;
using nsa::decode::StepSelectArgs;

struct Row {
  const char* name;
  const char* what;
  std::function<StepOps(StepOps)> change;
  std::vector<std::string_view> codes = {codes::kWaysDiffer, codes::kOutputBudget};
  const char* found_by = "parity/whole_decoding*";
};

std::function<StepOps(StepOps)> on_attend(std::function<void(StepAttendArgs&)> change) {
  return [change](StepOps ops) {
    ops.attend = [inner = ops.attend, change](const StepAttendArgs& args) {
      StepAttendArgs own = args;
      change(own);
      return inner(own);
    };
    return ops;
  };
}
std::function<StepOps(StepOps)> on_choice(std::function<Tensor(const Tensor&, const StepSelectArgs&)> change) {
  return [change](StepOps ops) {
    ops.select = [inner = ops.select, change](const StepSelectArgs& args) { return change(inner(args), args); };
    return ops;
  };
}

// The `number`-th block of a full row is taken out.
Tensor block_lost(const Tensor& blocks, std::int64_t number) {
  const std::int64_t n = blocks.size(3);
  const Tensor rest = at::cat({blocks.narrow(3, 0, number), blocks.narrow(3, number + 1, n - number - 1),
                               at::full_like(blocks.narrow(3, 0, 1), -1)},
                              3);
  return at::where(blocks.narrow(3, n - 1, 1).ge(0), rest, blocks).contiguous();
}

std::vector<Row> rows() {
  const std::vector<std::string_view> choice = {codes::kDecodeChoice, codes::kWaysDiffer, codes::kSelectionDiffers,
                                                codes::kOutputBudget};
  return {
      {"decode-first-key", "a decoding step attends to its first key alone",
       on_attend([](StepAttendArgs& a) { a.k = a.k.narrow(2, 0, 1), a.v = a.v.narrow(2, 0, 1); })},
      {"decode-last-key-lost", "a decoding step does not see the newest key", on_attend([](StepAttendArgs& a) {
         if (a.k.size(2) > 1) a.k = a.k.narrow(2, 0, a.k.size(2) - 1), a.v = a.v.narrow(2, 0, a.v.size(2) - 1);
       })},
      {"decode-scale-lost", "a decoding step's scores are not divided by sqrt(Dk)",
       on_attend([](StepAttendArgs& a) { a.q = a.q * std::sqrt(static_cast<double>(a.q.size(3))); })},
      {"decode-heads-as-tokens", "a decoding step's heads read the groups in the wrong order",
       on_attend([](StepAttendArgs& a) { a.q = at::roll(a.q, 1, 2).contiguous(); })},
      {"decode-values-shifted", "a decoding step pairs each key with the value after it",
       on_attend([](StepAttendArgs& a) { a.v = at::roll(a.v, -1, 2).contiguous(); })},
      {"decode-one-block-too-few", "a decoding step chooses one block less",
       on_choice([](const Tensor& blocks, const StepSelectArgs&) { return block_lost(blocks, 1); }), choice},
      {"decode-newest-block-lost", "a decoding step does not choose the token's own block",
       on_choice([](const Tensor& blocks, const StepSelectArgs&) { return block_lost(blocks, blocks.size(3) - 1); }),
       choice},
      {"decode-prompt-blocks-shifted", "the compressed blocks of a prompt are remembered one place late",
       [](StepOps ops) {
         ops.remember_blocks = [inner = ops.remember_blocks](LayerCache& cache, const nsa::Compressed& blocks) {
           if (blocks.k.size(1) < 2) return inner(cache, blocks);
           inner(cache, {at::roll(blocks.k, 1, 1), at::roll(blocks.v, 1, 1)});
         };
         return ops;
       }},
      {"decode-window-of-other-branch", "the window's cache holds the selected branch's keys",
       [](StepOps ops) {
         ops.remember = [inner = ops.remember](LayerCache& cache, const nsa::Projected& tokens) {
           nsa::Projected own = tokens;
           if (own.k_sel.defined() && own.k_win.defined()) own.k_win = own.k_sel;
           inner(cache, own);
         };
         return ops;
       }},
      {"decode-copies-the-cache",
       "a decoding step copies all compressed keys",
       [](StepOps ops) {
         ops.select = [inner = ops.select](const StepSelectArgs& args) {
           if (args.k_cmp.defined()) (void)args.k_cmp.repeat({1, 1, 4, 1}).sum();
           return inner(args);
         };
         return ops;
       },
       {codes::kDecodeCopies},
       "throughput/decoding_bytes"},
      {"decode-reads-twice",
       "a decoding step reads every key twice",
       on_attend([](StepAttendArgs& a) {
         a.k = at::cat({a.k, a.k}, 2), a.v = at::cat({a.v, a.v}, 2);
       }),
       {codes::kReadsLaw, codes::kDecodeCopies},
       "throughput/decoding_bytes"},
  };
}

}  // namespace decoding_mutant

std::vector<Planted> decoding_mutants(const std::shared_ptr<Seams>& seams) {
  std::vector<Planted> all;
  for (const decoding_mutant::Row& row : decoding_mutant::rows()) {
    const auto plant = [seams, change = row.change](const harness::FaultSite&) { seams->decode.push_back(change); };
    all.push_back({{row.name, row.what, {row.codes.begin(), row.codes.end()}, plant}, "decoding", row.found_by});
  }
  return all;
}

}  // namespace suites
