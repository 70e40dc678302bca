// One of the seven functions with random inputs, as a plain function from a list of differentiable tensors to a list of
// outputs, so that parity, causality and gradcheck treat all seven alike. Shapes are asymmetric on purpose: a swapped
// dimension never fits by accident.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "nsa/ops.hpp"
#include "nsa/route.hpp"

namespace suites::oracle {

struct OpShape {
  std::int64_t B = 2, S = 1, Hq = 6, G = 3, Dk = 16, Dv = 24;
  nsa::Geometry geometry;
  nsa::Phi phi = nsa::Phi::avg;
  nsa::CuSeqlens cu_seqlens;    // B must be 1
  bool own_block = false;       // a choice that is given always holds the token's own block, as one of `select` does
  bool empty_documents = true;  // a packed batch may hold some
  // attend: from one k and v for every branch, means of them for compression, and a choice of its own.
  bool attention = false;
};
// The shape as one of `attention`: of one width, which the window of many wants, and with few enough blocks that even
// a short text must choose.
[[nodiscard]] OpShape as_attention(OpShape shape);
// 2w + l' + 3 tokens: longer than the window and than n*l' of any geometry that is not larger than its window.
[[nodiscard]] OpShape parity_shape(const nsa::Geometry& geometry);
// A geometry and a shape small enough for gradcheck, with empty rows, partial blocks and a window shorter than S.
[[nodiscard]] OpShape tiny_shape();

// The Call for a shape (suites::make_call for shapes that are no model's).
[[nodiscard]] nsa::Call call_of(const OpShape& shape, at::ScalarType dtype, at::Device device, bool training);

// What the second dimension of an input or output counts (the third of a log-sum-exp).
enum class Rows { tokens, blocks, none };

struct OpCase {
  nsa::Op op = nsa::Op::compress;
  OpShape shape;
  std::vector<std::string> input_names;
  std::vector<Rows> input_rows;
  std::vector<at::Tensor> inputs;  // floating, of unit scale (attention: q is steeper)
  at::Tensor blocks;               // attend_selected, attend: the choice, not differentiated

  // Outputs: differentiable ones first, then a log-sum-exp where the op has one.
  std::vector<std::string> output_names;
  Rows output_rows = Rows::tokens;
  std::size_t differentiable_outputs = 1;

  // Runs the op of `ops` on `in`, which stands for `inputs`. A log-sum-exp that the backend does not give is undefined.
  [[nodiscard]] std::vector<at::Tensor> call(const nsa::Ops& ops, const std::vector<at::Tensor>& in) const;
  [[nodiscard]] std::string name() const;    // "attend_window", "compress_mlp", "attention"
  [[nodiscard]] std::string branch() const;  // "cmp", "sel", "win"; "" for combine and attend
};

// Values are drawn in fp64 on the CPU from a generator of their own, then rounded to `dtype` and moved: the same seed
// gives the same inputs on every device. `select` has one output, the blocks.
[[nodiscard]] OpCase make_op_case(nsa::Op op, const OpShape& shape, at::ScalarType dtype, at::Device device,
                                  std::uint64_t seed);

// A legal, random choice of blocks [B,S,G,n] int32, ascending and padded with -1; every 7th query has no block at all,
// unless its own must be among them.
[[nodiscard]] at::Tensor random_blocks(const OpShape& shape, at::Generator& generator);

// The part of a packed case that is its document number `index`, as a case of its own (B = 1, no cu_seqlens).
[[nodiscard]] OpCase document_of(const OpCase& packed, std::size_t index);

// bool [B,S,G] as [B,S,Hq,1], beside a tensor [B,S,Hq,D].
[[nodiscard]] at::Tensor over_heads(const at::Tensor& rows, const at::Tensor& like);

struct Evaluation {
  std::vector<at::Tensor> outputs;    // detached
  std::vector<at::Tensor> gradients;  // of sum <cotangent, output>, by input; undefined where none arrives
  bool requires_grad = false;         // of the differentiable outputs
};
// Runs the case with inputs of another dtype (rounded from its own), with gradients when `cotangent_seed` is given.
struct EvaluateOptions {
  at::ScalarType dtype = at::kDouble;
  bool gradients = false;
  std::uint64_t cotangent_seed = 1;
  at::Tensor rows = {};  // bool [B,S,G]: the others' cotangents are 0; undefined: all count
};
[[nodiscard]] Evaluation evaluate(const OpCase& c, const nsa::Ops& ops, const EvaluateOptions& options);
// The same with other cotangents: `change` writes into that of each differentiable output, in bf16, before it is used.
using ChangeCotangent = std::function<void(std::size_t output, const at::Tensor& cotangent)>;
[[nodiscard]] Evaluation evaluate(const OpCase& c, const nsa::Ops& ops, const EvaluateOptions& options,
                                  const ChangeCotangent& change);

}  // namespace suites::oracle
