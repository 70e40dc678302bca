#include "nsa/ops.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>
#include <string_view>

#include "nsa/attention_args.hpp"

namespace nsa {

namespace {

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::ostringstream device;
  device << tensor.device();
  return fmt::format("{} [{}] on {}", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                     device.str());
}

// The checks of one op's tensors; every message starts with the op's name.
class Contract {
 public:
  Contract(std::string_view op, const Geometry& g) : op_(op) { check_geometry(op, g); }
  explicit Contract(std::string_view op) : op_(op) {}

  [[noreturn]] void refuse(std::string_view name, const at::Tensor& tensor, std::string_view allowed) const {
    throw ContractError(fmt::format("{}: {} is {}; allowed: {}", op_, name, describe(tensor), allowed));
  }
  // `allowed`: the words, or what makes them. Every function of every layer asks, and words cost
  // more than the question.
  template <typename Allowed>
  void require(bool good, std::string_view name, const at::Tensor& tensor, const Allowed& allowed) const {
    if (good) return;
    if constexpr (std::is_invocable_v<const Allowed&>)
      refuse(name, tensor, allowed());
    else
      refuse(name, tensor, allowed);
  }

  // A 4-d floating tensor with no empty dimension but, where told, the second.
  void activation(std::string_view name, const at::Tensor& t, std::string_view shape, bool may_be_empty = false) const {
    require(t.defined() && t.dim() == 4 && t.layout() == at::kStrided, name, t,
            [&] { return fmt::format("a dense {}", shape); });
    const auto type = t.scalar_type();
    require(type == at::kDouble || type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, name, t,
            "Double, Float, BFloat16 or Half");
    for (std::int64_t i = 0; i < 4; ++i)
      require(t.size(i) > 0 || (i == 1 && may_be_empty), name, t,
              [&] { return fmt::format("{}, no dimension empty", shape); });
  }
  void like(std::string_view name, const at::Tensor& t, std::string_view other, const at::Tensor& o) const {
    require(t.scalar_type() == o.scalar_type() && t.device() == o.device(), name, t,
            [&] { return fmt::format("dtype and device of {}, which is {}", other, describe(o)); });
  }
  void size(std::string_view name, const at::Tensor& t, std::int64_t dim, std::int64_t wanted,
            std::string_view what) const {
    require(t.size(dim) == wanted, name, t, [&] { return fmt::format("{} = {} in dimension {}", what, wanted, dim); });
  }
  void grouped(const at::Tensor& q, std::int64_t G) const {
    require(q.size(2) % G == 0, "q", q, [&] { return fmt::format("Hq a multiple of the {} groups", G); });
  }
  // Heads before tokens, as torch's own attention takes them: worth more than which size differs first.
  void not_heads_first(bool heads_first, std::string_view name, const at::Tensor& t, std::string_view shape) const {
    require(!heads_first, name, t,
            [&] { return fmt::format("{}; these sizes fit if heads came before tokens: transpose(1, 2)", shape); });
  }
  void packing(const CuSeqlens& cu_seqlens, const at::Tensor& t, std::string_view name) const {
    if (!cu_seqlens) return;
    size(name, t, 0, 1, "B (a packed batch)");
    check_cu_seqlens(*cu_seqlens, t.size(1));
  }

  // q [B,S,Hq,Dk] with k [B,S,G,Dk] and v [B,S,G,Dv] of the same tokens.
  struct Named {
    std::string_view name;
    const at::Tensor& tensor;
  };
  void attention(const at::Tensor& q, const Named& k, const Named& v, const CuSeqlens& cu_seqlens) const {
    activation("q", q, "[B,S,Hq,Dk]");
    activation(k.name, k.tensor, "[B,S,G,Dk]");
    activation(v.name, v.tensor, "[B,S,G,Dv]");
    const auto& keys = k.tensor;
    not_heads_first(
        q.size(1) != keys.size(1) && q.size(2) == keys.size(2) && q.size(1) % keys.size(1) == 0 && q.size(2) != 1, "q",
        q, "[B,S,Hq,Dk]");
    for (const auto& [name, tensor] : {k, v}) {
      like(name, tensor, "q", q);
      for (const std::int64_t i : {0, 1}) size(name, tensor, i, q.size(i), i == 0 ? "B" : "S");
    }
    size(k.name, k.tensor, 3, q.size(3), "Dk");
    size(v.name, v.tensor, 2, k.tensor.size(2), "G");
    grouped(q, k.tensor.size(2));
    packing(cu_seqlens, q, "q");
  }
  // q [B,S,Hq,Dk] with the compressed keys of the same tokens.
  void compressed_keys(const at::Tensor& q, const at::Tensor& k, const Geometry& g, const CuSeqlens& cu_seqlens) const {
    activation("q", q, "[B,S,Hq,Dk]");
    activation("k_cmp", k, "[B,N_c,G,Dk]", true);
    like("k_cmp", k, "q", q);
    size("k_cmp", k, 0, q.size(0), "B");
    size("k_cmp", k, 3, q.size(3), "Dk");
    not_heads_first(!cu_seqlens && k.size(1) > 0 && k.size(1) != compressed_blocks(g, q.size(1)) &&
                        k.size(2) == compressed_blocks(g, q.size(2)) && q.size(1) % k.size(1) == 0,
                    "q", q, "[B,S,Hq,Dk]");
    grouped(q, k.size(2));
    packing(cu_seqlens, q, "q");
    size("k_cmp", k, 1, compressed_blocks(g, cu_seqlens, q.size(1)), "N_c");
  }
  void compressed(const at::Tensor& q, const Compressed& kv, const Geometry& g, const CuSeqlens& cu_seqlens) const {
    compressed_keys(q, kv.k, g, cu_seqlens);
    activation("v_cmp", kv.v, "[B,N_c,G,Dv]", true);
    like("v_cmp", kv.v, "q", q);
    for (const std::int64_t i : {0, 1, 2}) size("v_cmp", kv.v, i, kv.k.size(i), "the size of k_cmp");
  }
  // What all branches share where their outputs are summed: G groups, values of width Dv, a gate for each.
  template <typename Args>
  void summed(const Args& args, std::int64_t G, std::int64_t Dv) const {
    size("k_sel", args.k_sel, 2, G, "G");
    size("k_win", args.k_win, 2, G, "G");
    size("v_sel", args.v_sel, 3, Dv, "Dv");
    size("v_win", args.v_win, 3, Dv, "Dv");
    activation("gates", args.gates, "[B,S,G,3]");
    const auto& q = args.q;
    require(args.gates.sizes() == at::IntArrayRef({q.size(0), q.size(1), G, 3}) && args.gates.device() == q.device(),
            "gates", args.gates,
            [&] { return fmt::format("[{}, {}, {}, 3] on the device of q", q.size(0), q.size(1), G); });
  }
  void blocks(const at::Tensor& table, const at::Tensor& q, std::int64_t G, std::int64_t n) const {
    const std::int64_t B = q.size(0), S = q.size(1);
    const bool fits = table.defined() && table.scalar_type() == at::kInt &&
                      table.sizes() == at::IntArrayRef({B, S, G, n}) && table.device() == q.device();
    require(fits, "blocks", table, [&] { return fmt::format("Int [{}, {}, {}, {}] on the device of q", B, S, G, n); });
  }

 private:
  std::string op_;
};

void check_phi(const Contract& contract, const std::optional<PhiWeights>& phi, const at::Tensor& x, std::int64_t l,
               std::string_view name) {
  if (!phi) return;
  const std::int64_t D = x.size(3);
  const auto weight = [&](std::string_view part, const at::Tensor& t, std::int64_t rows, std::int64_t columns) {
    const std::string full = fmt::format("{}.{}", name, part);
    contract.require(t.defined() && t.sizes() == at::IntArrayRef({rows, columns}), full, t,
                     [&] { return fmt::format("[{}, {}]", rows, columns); });
    contract.like(full, t, "the tokens", x);
  };
  weight("position", phi->position, l, D);
  weight("fc1", phi->fc1, D, l * D);
  weight("fc2", phi->fc2, D, D);
}

// Ascending block numbers of the row's document, none of which starts after the row's token, then nothing but -1. Only
// for a tensor on the CPU.
void check_block_numbers(const Contract& contract, const at::Tensor& table, const Geometry& g,
                         const CuSeqlens& cu_seqlens) {
  const auto blocks = table.contiguous();
  const auto* row = blocks.data_ptr<std::int32_t>();
  const std::int64_t B = blocks.size(0), G = blocks.size(2), n = blocks.size(3);
  for (std::int64_t b = 0; b < B; ++b)
    for (const auto& [begin, end] : documents(cu_seqlens, blocks.size(1))) {
      for (std::int64_t i = 0; i < (end - begin) * G; ++i, row += n) {
        const std::int64_t current = i / G / g.l_sel;
        for (std::int64_t j = 0; j < n; ++j) {
          const bool padding = row[j] == -1;
          const bool number =
              row[j] >= 0 && row[j] <= current && (j == 0 || row[j] > row[j - 1]) && (j == 0 || row[j - 1] != -1);
          contract.require(padding || number, "blocks", table, [&] {
            return fmt::format(
                "ascending numbers up to {}, the token's own block, and then -1; row of token {}, group {}, "
                "place {} holds {}",
                current, begin + i / G, i % G, j, row[j]);
          });
        }
      }
    }
}

}  // namespace

void check_geometry(std::string_view op, const Geometry& g) {
  const bool works =
      g.d >= 1 && g.l >= 1 && g.l % g.d == 0 && g.l_sel % g.d == 0 && g.l <= g.l_sel && g.n_sel >= 3 && g.w >= 1;
  if (works) return;
  throw ContractError(
      fmt::format("{}: geometry l={} d={} l'={} n={} w={}; allowed: d divides l and l', l <= l', n >= 3, w >= 1", op,
                  g.l, g.d, g.l_sel, g.n_sel, g.w));
}

void check_cu_seqlens(const at::Tensor& cu, std::int64_t total) {
  const auto refuse = [](const std::string& what) { throw ContractError("cu_seqlens: " + what); };
  if (!cu.defined() || cu.scalar_type() != at::kInt || !cu.device().is_cpu() || cu.dim() != 1 || cu.numel() < 2)
    refuse(fmt::format("is {}; allowed: Int [documents + 1] on cpu, at least one document", describe(cu)));
  const auto values = cu.accessor<std::int32_t, 1>();
  const std::int64_t last = cu.numel() - 1;
  if (values[0] != 0) refuse(fmt::format("[0] = {}; allowed: 0", values[0]));
  for (std::int64_t i = 1; i <= last; ++i)
    if (values[i] < values[i - 1])
      refuse(
          fmt::format("[{}] = {} after [{}] = {}; allowed: it does not decrease", i, values[i], i - 1, values[i - 1]));
  if (values[last] != total)
    refuse(fmt::format("[{}] = {}; allowed: the {} tokens of the batch", last, values[last], total));
}

std::vector<std::pair<std::int64_t, std::int64_t>> documents(const CuSeqlens& cu_seqlens, std::int64_t S) {
  if (!cu_seqlens) return {{0, S}};
  check_cu_seqlens(*cu_seqlens, S);
  const auto values = cu_seqlens->accessor<std::int32_t, 1>();
  std::vector<std::pair<std::int64_t, std::int64_t>> result;
  for (std::int64_t i = 0; i + 1 < values.size(0); ++i) result.emplace_back(values[i], values[i + 1]);
  return result;
}

std::int64_t compressed_blocks(const Geometry& g, std::int64_t S) { return S < g.l ? 0 : (S - g.l) / g.d + 1; }

std::int64_t compressed_blocks(const Geometry& g, const CuSeqlens& cu_seqlens, std::int64_t S) {
  std::int64_t count = 0;
  for (const auto& [begin, end] : documents(cu_seqlens, S)) count += compressed_blocks(g, end - begin);
  return count;
}

std::int64_t selection_blocks(const Geometry& g, std::int64_t S) { return (S + g.l_sel - 1) / g.l_sel; }

at::ScalarType accumulation_type(at::ScalarType storage) { return storage == at::kDouble ? at::kDouble : at::kFloat; }

void check(const CompressArgs& args) {
  const Contract contract("compress", args.geometry);
  contract.activation("k", args.k, "[B,S,G,Dk]");
  contract.activation("v", args.v, "[B,S,G,Dv]");
  contract.like("v", args.v, "k", args.k);
  contract.size("v", args.v, 0, args.k.size(0), "B");
  contract.size("v", args.v, 1, args.k.size(1), "S");
  contract.size("v", args.v, 2, args.k.size(2), "G");
  contract.packing(args.cu_seqlens, args.k, "k");
  check_phi(contract, args.phi_k, args.k, args.geometry.l, "phi_k");
  check_phi(contract, args.phi_v, args.v, args.geometry.l, "phi_v");
}

void check(const AttendCompressedArgs& args) {
  Contract("attend_compressed", args.geometry).compressed(args.q, args.kv, args.geometry, args.cu_seqlens);
}

void check(const SelectArgs& args) {
  const Contract contract("select", args.geometry);
  contract.compressed_keys(args.q, args.k_cmp, args.geometry, args.cu_seqlens);
  if (!args.stats) return;
  const auto& stats = *args.stats;
  const std::int64_t B = args.q.size(0), Hq = args.q.size(2), S = args.q.size(1);
  const bool fits = stats.defined() && stats.scalar_type() == at::kFloat &&
                    stats.sizes() == at::IntArrayRef({B, Hq, S, 2}) && stats.device() == args.q.device();
  contract.require(fits, "stats", stats,
                   [&] { return fmt::format("Float [{}, {}, {}, 2] on the device of q", B, Hq, S); });
}

void check(const AttendSelectedArgs& args) {
  const Contract contract("attend_selected", args.geometry);
  contract.attention(args.q, {"k", args.k}, {"v", args.v}, args.cu_seqlens);
  contract.blocks(args.blocks, args.q, args.k.size(2), args.geometry.n_sel);
  if (args.blocks.device().is_cpu()) check_block_numbers(contract, args.blocks, args.geometry, args.cu_seqlens);
}

void check(const AttendWindowArgs& args) {
  Contract("attend_window", args.geometry).attention(args.q, {"k", args.k}, {"v", args.v}, args.cu_seqlens);
}

void check(const CombineArgs& args) {
  const Contract contract("combine");
  contract.activation("gates", args.gates, "[B,S,G,3]");
  contract.size("gates", args.gates, 3, 3, "branches");
  contract.activation("o_cmp", args.o_cmp, "[B,S,Hq,Dv]");
  contract.size("o_cmp", args.o_cmp, 0, args.gates.size(0), "B");
  contract.not_heads_first(args.o_cmp.size(1) != args.gates.size(1) && args.o_cmp.size(2) == args.gates.size(1),
                           "o_cmp", args.o_cmp, "[B,S,Hq,Dv]");
  contract.size("o_cmp", args.o_cmp, 1, args.gates.size(1), "S");
  contract.require(args.o_cmp.size(2) % args.gates.size(2) == 0, "o_cmp", args.o_cmp,
                   [&] { return fmt::format("Hq a multiple of the {} groups", args.gates.size(2)); });
  contract.require(args.gates.device() == args.o_cmp.device(), "gates", args.gates, "the device of o_cmp");
  for (const auto& [name, o] :
       {std::pair<std::string_view, const at::Tensor&>{"o_sel", args.o_sel}, {"o_win", args.o_win}}) {
    contract.require(o.defined() && o.sizes() == args.o_cmp.sizes(), name, o,
                     [&] { return fmt::format("as o_cmp, which is {}", describe(args.o_cmp)); });
    contract.like(name, o, "o_cmp", args.o_cmp);
  }
}

void check(const AttendArgs& args) {
  const Contract contract("attend", args.geometry);
  const auto& q = args.q;
  const auto computes = [&](ForcedBranch branch) { return args.only == ForcedBranch::none || args.only == branch; };
  if (computes(ForcedBranch::cmp))
    contract.compressed(q, args.kv, args.geometry, args.cu_seqlens);
  else if (computes(ForcedBranch::sel) && !args.blocks)
    contract.compressed_keys(q, args.kv.k, args.geometry, args.cu_seqlens);
  if (computes(ForcedBranch::sel)) {
    contract.attention(q, {"k_sel", args.k_sel}, {"v_sel", args.v_sel}, args.cu_seqlens);
    if (args.blocks) contract.blocks(*args.blocks, q, args.k_sel.size(2), args.geometry.n_sel);
    if (args.blocks && args.blocks->device().is_cpu())
      check_block_numbers(contract, *args.blocks, args.geometry, args.cu_seqlens);
  }
  if (computes(ForcedBranch::win)) contract.attention(q, {"k_win", args.k_win}, {"v_win", args.v_win}, args.cu_seqlens);
  if (args.only != ForcedBranch::none) return;  // nothing is summed

  contract.summed(args, args.kv.k.size(2), args.kv.v.size(3));
}

void check(const AttentionArgs& args) {
  const Contract contract("attention", args.geometry);
  const auto& q = args.q;
  contract.attention(q, {"k", args.k}, {"v", args.v}, args.cu_seqlens);
  contract.attention(q, {"k_sel", args.k_sel}, {"v_sel", args.v_sel}, args.cu_seqlens);
  contract.attention(q, {"k_win", args.k_win}, {"v_win", args.v_win}, args.cu_seqlens);
  contract.summed(args, args.k.size(2), args.v.size(3));
  if (!args.blocks) return;
  contract.blocks(*args.blocks, q, args.k.size(2), args.geometry.n_sel);
  if (args.blocks->device().is_cpu()) check_block_numbers(contract, *args.blocks, args.geometry, args.cu_seqlens);
}

}  // namespace nsa
