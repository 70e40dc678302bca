// The language model of nsa/README.md a second time: plain tensor code over a map of parameters, written from that text
// and the paper's equations alone. It shares no code with nsa/ (only the structs of the configuration and of the flags)
// and knows no ops table, so that a fault anywhere in the product stands on one side of a comparison only.
//
// In fp64 it is the oracle. In fp32 and bf16 the same code is the naive computation whose error says what rounding
// costs. Gradients come from torch's autograd, with the choice of blocks held, so that no tie decides.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nsa/config.hpp"
#include "nsa/flags.hpp"

namespace suites::oracle {

using Parameters = std::map<std::string, at::Tensor>;  // by the names of nsa/README.md
using Stages = std::vector<std::pair<std::string, at::Tensor>>;
using Documents = std::vector<std::int64_t>;  // their lengths, end to end in one row; empty: every row is one

enum class Curve { silu, gelu, relu };
enum class Pairs { interleaved, halves };                 // (2i, 2i+1), or (i, i + D/2)
enum class Heads { of_the_group, one_in_g, first, sum };  // whose queries a group's gate averages; sum: the group's
enum class Input { after_attention, before_attention };   // what the MLP's norm reads

// What the description fixes and no configuration changes. The defaults are the description. Another value is a mistake
// that is made on purpose: to show that a comparison sees the constant, or to tell a product's mistake by it.
struct Constants {
  double norm_eps = 1e-6;
  bool norm_centres = false;      // takes the mean away first
  double norm_weight_offset = 0;  // is added to its weight
  Pairs rope_pairs = Pairs::interleaved;
  std::int64_t rope_first = 0;  // position of a document's first token
  double rope_turn = 1;         // -1: clockwise
  double rope_power = 2;        // pair i turns by base^(-power i / (D - span))
  std::int64_t rope_span = 0;
  bool rope_of_queries = true, rope_of_keys = true;
  double attention_scale = 1;                                                 // times 1/sqrt(Dk)
  double residual_scale = 1;                                                  // of what is added to the stream
  bool attention_residual_is_normed = false, mlp_residual_is_normed = false;  // instead of the stream itself
  double embedding_scale = 1;                                                 // of the embedded tokens
  Curve mlp = Curve::silu, gate = Curve::silu, phi = Curve::silu;
  Input mlp_input = Input::after_attention;
  bool gate_after_rope = false;  // the gate's input
  Heads gate_heads = Heads::of_the_group;
  bool gate_over_groups = false;                       // its softmax sums to 1 over the groups, not over the branches
  std::array<std::int64_t, 3> gate_order = {0, 1, 2};  // which gate weighs cmp, sel and win
  bool gates_one_in_g = false;                         // head i has the gates of group i mod G
  std::int64_t cmp_early = 0;                          // a block is seen so many tokens before its last one
  std::int64_t sel_early = 0;      // a chosen token is seen so many tokens before itself; -1: not by itself
  bool features_one_in_h = false;  // feature i of a projection belongs to head i mod heads, not to its own D neighbours
  bool phi_by_width = false;       // phi reads a block dimension after dimension, not token after token
  // Group g has the heads g, g + G, ... for its own, not h neighbours: as they come in, and as they go out.
  bool queries_one_in_g = false, outputs_one_in_g = false;
  double rope_back = 1;            // gradients of RoPE are turned back; -1: on; 0: not at all
  bool head_reads_stream = false;  // before the last norm
  bool targets_by_column = false;  // the loss takes them token by token over the rows, not row by row
  double smoothing = 0;            // of the loss
  std::int64_t unpredicted = -1;   // a token that the loss leaves out
  // A path (kPaths) along which no gradient comes back; values stay as they are.
  std::string_view cut = {};
};

// The paths by which gradients reach a parameter, as words for "the gradient that comes back {}".
inline constexpr std::string_view kPaths[] = {
    "through the gate's input",
    "to the queries through the compressed branch",
    "to the queries through the selected branch",
    "to the queries through the window",
    "to compressed keys",
    "to compressed values",
    "to the selected branch's keys",
    "to the selected branch's values",
    "to the window's keys",
    "to the window's values",
    "through the compressed branch's gate",
    "through the selected branch's gate",
    "through the window's gate",
    "through the compressed branch's output",
    "through the selected branch's output",
    "through the window's output",
    "through the size that a norm divides by",
    "along the residual past attention",
    "along the residual past the MLP",
    "through attention's input",
    "through the MLP's input",
    "to keys and values from all heads of a group but the first",
    "through the sum of a softmax",
};

struct PlainModel {
  nsa::ModelConfig config;
  nsa::EffectiveFlags flags;  // read: rope_scale, uniform_gate, stopgrad_gates, forced_branch
  Parameters parameters;      // one floating dtype, which is the storage type of all that is computed
  // Type of RoPE's angles. fp64 is exact; fp32 is what the description allows the product.
  at::ScalarType angles = at::kDouble;
  Constants constants = {};
};

// Names and shapes that a configuration has, in no particular order.
[[nodiscard]] std::map<std::string, std::vector<std::int64_t>> parameter_shapes(const nsa::ModelConfig& config);

// `model` with its parameters in `dtype`, as leaves of their own that want gradients, and its angles in fp64 for
// fp64 or in fp32.
[[nodiscard]] PlainModel in_precision(const PlainModel& model, at::ScalarType dtype);

struct Pass {
  Stages stages;        // names and order of nsa/README.md, "Stages"; attached to the graph
  at::Tensor logits;    // [B,S,vocab]
  at::Tensor surprise;  // loss(): of each prediction, in nats
  at::Tensor loss;      // loss(): their mean
  [[nodiscard]] at::Tensor stage(const std::string& name) const;  // undefined where there is none
};

// tokens [B,S] int64. `blocks`: for each layer the choice [B,S,G,n], ascending and padded with -1, that is taken
// instead of an own one; empty: all own. Documents: B = 1. Throws std::out_of_range where a parameter is missing.
[[nodiscard]] Pass forward(const PlainModel& model, const at::Tensor& tokens, const Documents& documents = {},
                           const std::vector<at::Tensor>& blocks = {});
// tokens [B,S+1]: the pass over the first S of a row, and cross-entropy of what follows each of them. `documents`
// counts all S+1 tokens; the first token of a document is not predicted from the document before it.
[[nodiscard]] Pass loss(const PlainModel& model, const at::Tensor& tokens, const Documents& documents = {},
                        const std::vector<at::Tensor>& blocks = {});

// Equations 8 to 10 in fp64 for one document: q [B,S,Hq,Dk], k_cmp [B,N_c,G,Dk] -> importance [B,S,G,ceil(S/l')].
[[nodiscard]] at::Tensor block_scores(const at::Tensor& q, const at::Tensor& k_cmp, const nsa::ModelConfig& config);

// Token by token from caches of its own: all rotated keys, all values and all complete blocks, nothing else.
class PlainDecoder {
 public:
  explicit PlainDecoder(PlainModel model);
  // tokens [B,1]; `blocks` for each layer [B,1,G,n], or empty. The stages are those of the one token, without
  // cmp.k and cmp.v.
  [[nodiscard]] Pass step(const at::Tensor& tokens, const std::vector<at::Tensor>& blocks = {});
  [[nodiscard]] std::int64_t length() const { return length_; }
  // A layer's complete compressed keys [B,N_c,G,Dk]; undefined before the first token, or where no branch needs them.
  [[nodiscard]] at::Tensor compressed_keys(std::size_t layer) const { return caches_.at(layer).k_blocks; }

 private:
  struct Cache {
    at::Tensor k_cmp, v_cmp;  // rows before compression
    at::Tensor k_blocks, v_blocks, k_sel, v_sel, k_win, v_win;
  };
  PlainModel model_;
  std::vector<Cache> caches_;
  std::int64_t length_ = 0;
};

}  // namespace suites::oracle
