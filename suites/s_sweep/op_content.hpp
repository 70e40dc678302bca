// What the seven functions are fed with: hostile content, in dtypes, lengths and layouts of every kind.
//
// Note [How large is largest]
// The ops promise fp32 arithmetic. A value may be as large as its dtype allows, but not so large that a sum of the
// promised arithmetic leaves fp32: logits stay below FLT_MAX (|q|, |k| <= sqrt(FLT_MAX / (16 Dk))), sums over keys too
// (|v| <= FLT_MAX / (16 keys); kernels add before they divide by the denominator), and phi = mlp, which computes in the
// storage dtype, gets 1/64 of its range. For fp16 that is simply 65504. Cotangents shrink with what they will be
// multiplied with, so that gradients fit as well. `overflow` breaks this on purpose, with cotangents of half the range.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "suites/oracle/op_case.hpp"

namespace suites::s_sweep_cases {

enum class Content {
  normal,          // unit normal
  ties,            // all keys are one key: every score of a query is the same
  one_hot,         // one non-zero in each row of q, k and v
  zero_keys,       // k = 0
  denormal,        // every value below the smallest normal number
  steep_logits,    // logits of about a million
  largest_logits,  // q and k as large as they may be; forward only
  largest_values,  // v as large as it may be
  overflow,        // gradients leave the dtype and must show it
  poison,          // NaN in padding: a padding document, or the other batch element
  stale_memory     // fresh memory holds NaN instead of what happens to be there
};
inline constexpr std::array kContents = {Content::normal,         Content::ties,           Content::one_hot,
                                         Content::zero_keys,      Content::denormal,       Content::steep_logits,
                                         Content::largest_logits, Content::largest_values, Content::overflow,
                                         Content::poison,         Content::stale_memory};
[[nodiscard]] std::string_view to_string(Content content);
[[nodiscard]] bool suits(Content content, nsa::Op op);  // an op without keys has no zero keys
[[nodiscard]] bool forward_only(Content content);

enum class Layout {
  single,  // one sequence of S tokens
  batch,   // two of them; with poison, the second is padding
  packed   // documents of 0, S, 1, 0 and l+1 tokens; with poison, padding of l+1 before and behind
};
inline constexpr std::array kLayouts = {Layout::single, Layout::batch, Layout::packed};
[[nodiscard]] std::string_view to_string(Layout layout);

struct OpInput {
  oracle::OpCase clean;                // what the reference gets
  std::vector<at::Tensor> given;       // what the op under test gets: `clean.inputs`, with NaN in padding
  std::vector<at::Tensor> cotangents;  // fp64, of the differentiable outputs; 0 in padding
  // [B, rows] bool on the device: what is not padding, of rows that count tokens and of rows that count blocks.
  at::Tensor valid_tokens, valid_blocks;
};
struct OpInputOptions {
  nsa::Op op = nsa::Op::attend_window;
  nsa::Phi phi = nsa::Phi::avg;
  nsa::Geometry geometry;
  std::int64_t S = 1, Hq = 4, G = 2, Dk = 16, Dv = 24;
  bool own_block = false, empty_documents = true, attention = false;  // as oracle::OpShape has them
  at::ScalarType dtype = at::kFloat;
  double scale = 1;  // of the first input: queries; compress: keys; combine: the logits of the gates
  Content content = Content::normal;
  Layout layout = Layout::single;
};
[[nodiscard]] OpInput make_input(const OpInputOptions& options, at::Device device, std::uint64_t seed);

// The largest finite number of a floating dtype.
[[nodiscard]] double largest(at::ScalarType dtype);

}  // namespace suites::s_sweep_cases
