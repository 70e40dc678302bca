#include "suites/s_sweep/op_content.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace suites::s_sweep_cases {

namespace {

using nsa::Op;

constexpr double kFp32Max = std::numeric_limits<float>::max();

double smallest_normal(at::ScalarType dtype) {
  return dtype == at::kHalf ? std::ldexp(1.0, -14) : std::ldexp(1.0, -126);
}

enum class Role { query, key, value, gates, weight };

Role role_of(const std::string& name) {
  if (name == "gates") return Role::gates;
  if (name.starts_with("fc") || name.starts_with("position")) return Role::weight;
  if (name.starts_with("q")) return Role::query;
  return name.starts_with("k") ? Role::key : Role::value;
}

bool attends(Op op) {
  return op == Op::attend_compressed || op == Op::attend_selected || op == Op::attend_window || op == Op::attend;
}

std::vector<std::int64_t> document_lengths(const OpInputOptions& o) {
  const std::int64_t other = o.geometry.l + 1;
  std::vector<std::int64_t> lengths = {0, o.S, 1, 0, other};
  if (o.content == Content::poison) lengths = {0, other, o.S, 1, 0, other};
  if (!o.empty_documents) std::erase(lengths, 0);
  return lengths;
}

oracle::OpShape shape_of(const OpInputOptions& o) {
  oracle::OpShape shape;
  shape.B = o.layout == Layout::batch ? 2 : 1;
  shape.S = o.S;
  shape.Hq = o.Hq;
  shape.G = o.G;
  shape.Dk = o.Dk;
  shape.Dv = o.Dv;
  shape.geometry = o.geometry;
  shape.phi = o.phi;
  shape.own_block = o.own_block;
  shape.empty_documents = o.empty_documents;
  shape.attention = o.attention;
  if (o.layout != Layout::packed) return shape;
  std::vector<std::int32_t> ends = {0};
  for (const std::int64_t length : document_lengths(o)) ends.push_back(ends.back() + static_cast<std::int32_t>(length));
  shape.cu_seqlens = at::tensor(ends, at::kInt);
  shape.S = ends.back();
  return shape;
}

// Note [How large is largest]
double limit_of(const OpInputOptions& o, Role role, std::int64_t rows) {
  const double storage = largest(o.dtype);
  if (o.op == Op::compress) {
    return o.phi == nsa::Phi::mlp ? storage / 64
                                  : std::min(storage, kFp32Max / (16 * static_cast<double>(o.geometry.l)));
  }
  if (o.op == Op::combine) return storage / 8;
  if (role == Role::value) return std::min(storage, kFp32Max / (16 * static_cast<double>(rows)));
  return std::min(storage, std::sqrt(kFp32Max / (16 * static_cast<double>(o.Dk))));
}

// fp64 [.., rows, .., D]: `peak` at one place of each row, which moves with the row.
at::Tensor one_hot(const at::Tensor& like, std::int64_t step, double peak) {
  const std::int64_t rows = like.size(1), D = like.size(-1);
  const auto options = like.options().dtype(at::kLong);
  const at::Tensor place = (at::arange(rows, options) * step).remainder(D).view({1, rows, 1, 1});
  return at::arange(D, options).eq(place).to(at::kDouble).mul(peak).expand(like.sizes());
}

// Between 1/2 and 1 in size, of either sign.
at::Tensor large(const at::Tensor& x) { return x.sign() * (1 - 0.5 * at::sigmoid(x)); }

// One input, unit normal (gates: probabilities), as the content wants it. fp64.
at::Tensor shaped(const OpInputOptions& o, Role role, const at::Tensor& x) {
  if (role == Role::weight) return x;
  if (role == Role::gates) return o.content == Content::ties ? at::full_like(x, 1.0 / 3) : x;
  const double limit = limit_of(o, role, x.size(1));
  switch (o.content) {
    case Content::ties:
      return role == Role::key && x.size(1) > 0 ? x.narrow(1, 0, 1).expand(x.sizes()) : x;
    case Content::one_hot:
      return one_hot(x, role == Role::query ? 7 : 1, role == Role::value ? 1 : 8);
    case Content::zero_keys:
      return role == Role::key ? at::zeros_like(x) : x;
    case Content::denormal:
      return x * (smallest_normal(o.dtype) / 8);
    case Content::steep_logits:
      return role == Role::value ? x : large(x) * std::min(limit, 1024 / std::pow(static_cast<double>(o.Dk), 0.25));
    case Content::largest_logits:
      return role == Role::value ? x : large(x) * limit;
    case Content::largest_values:
      return role == Role::value || o.op == Op::compress ? x.sign() * limit : x;
    case Content::normal:
    case Content::overflow:
    case Content::poison:
    case Content::stale_memory:
      return x;
  }
  return x;
}

at::Tensor scaled(const OpInputOptions& o, Role role, const at::Tensor& x) {
  if (role == Role::gates) return at::softmax(x.clamp_min(1e-300).log() * o.scale, -1);
  const bool as_large_as_may_be = o.content == Content::largest_logits || o.content == Content::steep_logits;
  return x * (as_large_as_may_be ? std::min(1.0, o.scale) : o.scale);
}

std::vector<at::Tensor> content_of(const OpInputOptions& o, const oracle::OpCase& c) {
  std::vector<at::Tensor> inputs;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const Role role = role_of(c.input_names[i]);
    at::Tensor x = shaped(o, role, c.inputs[i].to(at::kDouble));
    if (i == 0) x = scaled(o, role, x);
    if (role != Role::gates && role != Role::weight && x.numel() > 0) {
      const double limit = limit_of(o, role, x.size(1));
      x = x.clamp(-limit, limit);
    }
    inputs.push_back(x.to(o.dtype).contiguous());
  }
  return inputs;
}

// [B, rows] of what is not padding; `count` tells how many rows a document has.
at::Tensor validity(const OpInputOptions& o, const oracle::OpCase& c,
                    const std::function<std::int64_t(std::int64_t)>& count) {
  std::vector<at::Tensor> parts;
  const auto documents = nsa::documents(c.shape.cu_seqlens, c.shape.S);
  const bool packed_poison = o.content == Content::poison && o.layout == Layout::packed;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const bool padding = packed_poison && (i == (o.empty_documents ? 1 : 0) || i + 1 == documents.size());
    parts.push_back(
        at::full({c.shape.B, count(documents[i].second - documents[i].first)}, !padding, at::TensorOptions(at::kBool)));
  }
  const at::Tensor valid = at::cat(parts, 1);
  if (o.content == Content::poison && o.layout == Layout::batch) valid.select(0, 1).fill_(false);
  return valid.to(c.inputs[0].device());
}

// [B,rows] -> broadcastable over a tensor [B,rows,...]
at::Tensor over(const at::Tensor& valid, const at::Tensor& like) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(like.dim()), 1);
  sizes[0] = valid.size(0);
  sizes[1] = valid.size(1);
  return valid.view(sizes);
}

double cotangent_size(const OpInputOptions& o) {
  if (o.content == Content::overflow) return largest(o.dtype) / 2;
  double size = 1 / std::max(1.0, o.scale);
  if (o.content == Content::largest_values) size /= 1024 * static_cast<double>(o.Dv);
  return size;
}

std::vector<at::Tensor> cotangents_of(const OpInputOptions& o, const OpInput& input, std::uint64_t seed) {
  const oracle::OpCase& c = input.clean;
  const bool blocks = c.output_rows == oracle::Rows::blocks;
  const at::Tensor& valid = blocks ? input.valid_blocks : input.valid_tokens;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  std::vector<at::Tensor> result;
  for (std::size_t i = 0; i < c.differentiable_outputs; ++i) {
    const std::int64_t heads = o.op == Op::compress ? c.shape.G : c.shape.Hq;
    const std::int64_t width = o.op == Op::compress && i == 0 ? c.shape.Dk : c.shape.Dv;
    at::Tensor x = at::randn({c.shape.B, valid.size(1), heads, width}, generator, at::TensorOptions(at::kDouble));
    if (o.content == Content::overflow) x = at::ones_like(x);
    result.push_back((x.to(valid.device()) * cotangent_size(o)) * over(valid, x));
  }
  return result;
}

}  // namespace

std::string_view to_string(Content content) {
  switch (content) {
    case Content::normal:
      return "normal";
    case Content::ties:
      return "ties";
    case Content::one_hot:
      return "one_hot";
    case Content::zero_keys:
      return "zero_keys";
    case Content::denormal:
      return "denormal";
    case Content::steep_logits:
      return "steep_logits";
    case Content::largest_logits:
      return "largest_logits";
    case Content::largest_values:
      return "largest_values";
    case Content::overflow:
      return "overflow";
    case Content::poison:
      return "poison";
    case Content::stale_memory:
      return "stale_memory";
  }
  return "?";
}

std::string_view to_string(Layout layout) {
  switch (layout) {
    case Layout::single:
      return "single";
    case Layout::batch:
      return "batch";
    case Layout::packed:
      return "packed";
  }
  return "?";
}

bool suits(Content content, Op op) {
  switch (content) {
    case Content::steep_logits:
    case Content::largest_logits:
      return attends(op) || op == Op::select;
    case Content::largest_values:
      return op != Op::select;
    case Content::overflow:
      return attends(op);
    case Content::zero_keys:
      return op != Op::combine;
    case Content::normal:
    case Content::ties:
    case Content::one_hot:
    case Content::denormal:
    case Content::poison:
    case Content::stale_memory:
      return true;
  }
  return false;
}

bool forward_only(Content content) { return content == Content::largest_logits; }

OpInput make_input(const OpInputOptions& o, at::Device device, std::uint64_t seed) {
  OpInput input;
  input.clean = oracle::make_op_case(o.op, shape_of(o), at::kDouble, device, seed);
  input.clean.inputs = content_of(o, input.clean);
  input.valid_tokens = validity(o, input.clean, [](std::int64_t tokens) { return tokens; });
  input.valid_blocks =
      validity(o, input.clean, [&](std::int64_t tokens) { return nsa::compressed_blocks(o.geometry, tokens); });
  for (std::size_t i = 0; i < input.clean.inputs.size(); ++i) {
    at::Tensor x = input.clean.inputs[i];
    const oracle::Rows rows = input.clean.input_rows[i];
    if (o.content == Content::poison && rows != oracle::Rows::none) {
      const at::Tensor& valid = rows == oracle::Rows::blocks ? input.valid_blocks : input.valid_tokens;
      x = x.masked_fill(over(valid, x).logical_not(), std::numeric_limits<double>::quiet_NaN());
    }
    input.given.push_back(x);
  }
  input.cotangents = cotangents_of(o, input, seed + 1);
  return input;
}

double largest(at::ScalarType dtype) {
  if (dtype == at::kDouble) return std::numeric_limits<double>::max();
  if (dtype == at::kHalf) return 65504;
  if (dtype == at::kBFloat16) return static_cast<double>(std::numeric_limits<c10::BFloat16>::max());
  return kFp32Max;
}

}  // namespace suites::s_sweep_cases
