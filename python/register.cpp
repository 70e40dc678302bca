// The names of torch.ops.nsa. The shapes of results (fake kernels) are registered in Python (nsa/shapes.py), which
// knows sizes that depend on data.
#include <fmt/format.h>
#include <torch/library.h>

#include "nsa/cuda/architectures.hpp"
#include "python/arguments.hpp"
#include "python/operators.hpp"

namespace nsa::python {

namespace {

const std::string kGeometry = "int l, int d, int l_sel, int n_sel, int w";

TORCH_LIBRARY(nsa, m) {
  const auto define = [&](std::string schema) {
    const auto place = schema.find("GEOMETRY");
    if (place != std::string::npos) schema.replace(place, std::string_view("GEOMETRY").size(), kGeometry);
    m.def(schema.c_str(), {at::Tag::pt2_compliant_tag});
  };
  define("compress(Tensor k, Tensor v, Tensor? cu_seqlens, GEOMETRY, str backend) -> (Tensor k_cmp, Tensor v_cmp)");
  define(
      "compress_backward(Tensor dk_cmp, Tensor dv_cmp, SymInt S, Tensor? cu_seqlens, GEOMETRY, str backend) -> "
      "(Tensor dk, Tensor dv)");
  define(
      "attend_compressed(Tensor q, Tensor k_cmp, Tensor v_cmp, Tensor? cu_seqlens, GEOMETRY, str backend) -> "
      "(Tensor o, Tensor stats)");
  define(
      "attend_compressed_backward(Tensor dout, Tensor q, Tensor k_cmp, Tensor v_cmp, Tensor o, Tensor stats, "
      "Tensor? cu_seqlens, GEOMETRY, bool[3] wanted, str backend) -> Tensor[]");
  define("select(Tensor q, Tensor k_cmp, Tensor? stats, Tensor? cu_seqlens, GEOMETRY, str backend) -> Tensor");
  define(
      "attend_selected(Tensor q, Tensor k, Tensor v, Tensor blocks, Tensor? cu_seqlens, GEOMETRY, str backend) -> "
      "(Tensor o, Tensor stats)");
  define(
      "attend_selected_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor blocks, Tensor o, Tensor stats, "
      "Tensor? cu_seqlens, GEOMETRY, bool[3] wanted, str backend) -> Tensor[]");
  define(
      "attend_window(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens, GEOMETRY, str backend) -> "
      "(Tensor o, Tensor stats)");
  define(
      "attend_window_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor o, Tensor stats, "
      "Tensor? cu_seqlens, GEOMETRY, bool[3] wanted, str backend) -> Tensor[]");
  define("combine(Tensor gates, Tensor o_cmp, Tensor o_sel, Tensor o_win, str backend) -> Tensor");
  define(
      "combine_backward(Tensor dout, Tensor gates, Tensor o_cmp, Tensor o_sel, Tensor o_win, bool[4] wanted, "
      "str backend) -> Tensor[]");
  define(
      "attend(Tensor q, Tensor k_cmp, Tensor v_cmp, Tensor k_sel, Tensor v_sel, Tensor k_win, Tensor v_win, "
      "Tensor gates, Tensor? blocks, Tensor? cu_seqlens, GEOMETRY, str backend) -> (Tensor o, Tensor blocks, "
      "Tensor o_cmp, Tensor o_sel, Tensor o_win, Tensor stats_cmp, Tensor stats_sel, Tensor stats_win)");
  define(
      "attend_backward(Tensor dout, Tensor q, Tensor k_cmp, Tensor v_cmp, Tensor k_sel, Tensor v_sel, Tensor k_win, "
      "Tensor v_win, Tensor gates, Tensor blocks, Tensor o_cmp, Tensor o_sel, Tensor o_win, Tensor stats_cmp, "
      "Tensor stats_sel, Tensor stats_win, Tensor? cu_seqlens, GEOMETRY, bool[8] wanted, str backend) -> Tensor[]");
  define(
      "attention(Tensor q, Tensor k, Tensor v, Tensor k_sel, Tensor v_sel, Tensor k_win, Tensor v_win, Tensor gates, "
      "Tensor? blocks, Tensor? cu_seqlens, GEOMETRY, str backend) -> (Tensor o, Tensor blocks, Tensor o_cmp, "
      "Tensor o_sel, Tensor o_win, Tensor stats_cmp, Tensor stats_sel, Tensor stats_win, Tensor k_cmp, Tensor v_cmp)");
  // o of it alone (attention_output.cpp).
  define(
      "attention_output(Tensor q, Tensor k, Tensor v, Tensor k_sel, Tensor v_sel, Tensor k_win, Tensor v_win, "
      "Tensor gates, Tensor? blocks, Tensor? cu_seqlens, GEOMETRY, str backend) -> Tensor");
  define(
      "attention_backward(Tensor dout, Tensor q, Tensor k_cmp, Tensor v_cmp, Tensor k_sel, Tensor v_sel, Tensor k_win, "
      "Tensor v_win, Tensor gates, Tensor blocks, Tensor o_cmp, Tensor o_sel, Tensor o_win, Tensor stats_cmp, "
      "Tensor stats_sel, Tensor stats_win, Tensor? cu_seqlens, GEOMETRY, bool[8] wanted, str backend) -> Tensor[]");
  // What is asked of arguments (arguments.hpp).
  define("narrow_bounds(Tensor cu_seqlens) -> Tensor");
  m.def(
      "model_errors(int dim, int n_layers, int n_heads, int n_kv_groups, int d_k, int d_v, int vocab, float rope_base, "
      "float gate_tau, int l, int d, int l_sel, int n_sel, int w) -> str[]",
      model_errors);
  // Of files (nsa/files.py).
  m.def("hash64(Tensor bytes) -> int", hash64);
  // "" where this build holds machine code for that compute capability, else the reason why not.
  m.def("refused_architecture(int major, int minor) -> str", [](std::int64_t major, std::int64_t minor) {
    return architecture_refusal(compiled_architectures(), static_cast<int>(major), static_cast<int>(minor));
  });
}

// Both in the same words: where a tensor lies is looked at call by call.
void implement(torch::Library& m) {
  m.impl("compress", compress);
  m.impl("compress_backward", compress_backward);
  m.impl("attend_compressed", attend_compressed);
  m.impl("attend_compressed_backward", attend_compressed_backward);
  m.impl("select", select);
  m.impl("attend_selected", attend_selected);
  m.impl("attend_selected_backward", attend_selected_backward);
  m.impl("attend_window", attend_window);
  m.impl("attend_window_backward", attend_window_backward);
  m.impl("combine", combine);
  m.impl("combine_backward", combine_backward);
  m.impl("attend", attend);
  m.impl("attend_backward", attend_backward);
  m.impl("attention", attention);
  m.impl("attention_backward", attention_backward);
}

TORCH_LIBRARY_IMPL(nsa, CPU, m) {
  implement(m);
  m.impl("narrow_bounds", narrow_bounds);
}
TORCH_LIBRARY_IMPL(nsa, CUDA, m) { implement(m); }
// Numbers of tokens have no gradient.
TORCH_LIBRARY_IMPL(nsa, Autograd, m) { m.impl("narrow_bounds", torch::CppFunction::makeFallthrough()); }

}  // namespace

}  // namespace nsa::python
