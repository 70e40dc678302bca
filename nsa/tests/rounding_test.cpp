// What 16-bit storage costs the gradients of sdpa, against what it costs torch's own attention with a key head for
// every query head: at most 1.5 times as much, however many heads a group has.
#include "nsa/sdpa/sdpa.hpp"
#include "nsa/tests/fixtures.hpp"

namespace nsa::sdpa {
namespace {

using fixtures::cu;
using fixtures::Inputs;

constexpr std::int64_t kHeadsOfAGroup = 16, kTokens = 512;

Inputs with_window(std::int64_t w, const Geometry& other, std::int64_t Dv = 16, std::int64_t S = kTokens) {
  Geometry g = other;
  g.w = w;
  return {{.S = S, .G = 1, .h = kHeadsOfAGroup, .Dk = 16, .Dv = Dv}, 3, at::kBFloat16, g};
}

// Attention as torch would do it: [S,keys] or [Hq,S,keys] of what is visible.
at::Tensor plain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& visible) {
  const auto heads = [&](const at::Tensor& t) { return t.transpose(1, 2).expand({-1, q.size(2), -1, -1}); };
  return at::scaled_dot_product_attention(q.transpose(1, 2), heads(k), heads(v), visible).transpose(1, 2);
}

using Attention = std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)>;

// dQ, dK, dV of these inputs, computed in `type`.
std::vector<at::Tensor> gradients(const Attention& f, const std::vector<at::Tensor>& inputs, at::ScalarType type) {
  std::vector<at::Tensor> x;
  for (const auto& t : inputs) x.push_back(t.to(type).detach().clone().set_requires_grad(true));
  const auto o = f(x[0], x[1], x[2]);
  return torch::autograd::grad({(o * fixtures::random(o.sizes(), 9, at::kBFloat16).to(type)).sum()}, x);
}

// Errors (root mean square) relative to the very same numbers in fp64.
void expect_as_torch(const std::string& name, const Attention& own, const Attention& torchs,
                     const std::vector<at::Tensor>& inputs) {
  const auto wanted = gradients(torchs, inputs, at::kDouble), here = gradients(own, inputs, at::kBFloat16),
             there = gradients(torchs, inputs, at::kBFloat16);
  const auto error = [&](const at::Tensor& got, std::size_t i) {
    return ((got.to(at::kDouble) - wanted[i]).norm() / wanted[i].norm()).item<double>();
  };
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_LE(error(here[i], i), 1.5 * error(there[i], i)) << name << " d"
                                                           << "qkv"[i];
}

at::Tensor place(std::int64_t count) { return at::arange(count, at::kLong); }

void expect_window_as_torch(std::int64_t S, std::int64_t w, std::int64_t Dv) {
  const Inputs in = with_window(w, {4, 2, 8, 3, 6}, Dv, S);
  const auto distance = place(S).unsqueeze(1) - place(S);
  const auto visible = distance.ge(0).logical_and(distance.lt(w));
  expect_as_torch(
      "window of " + std::to_string(w) + " Dv " + std::to_string(Dv),
      [&](const auto& q, const auto& k, const auto& v) {
        return attend_window({q, k, v, in.g, {}}).o;
      },
      [&](const auto& q, const auto& k, const auto& v) { return plain(q, k, v, visible); }, {in.q, in.k, in.v});
}

TEST(SdpaRounding, TheWindow) {
  for (const std::int64_t w : {kTokens, std::int64_t{200}})
    for (const std::int64_t Dv : {16, 24}) expect_window_as_torch(kTokens, w, Dv);
}

// Where the noise was first seen: the more queries a key has, the more of their gradients are summed.
TEST(SdpaRounding, AWindowOf2048) { expect_window_as_torch(2048, 2048, 16); }

TEST(SdpaRounding, TheCompressedBranch) {
  const Inputs in = with_window(6, {4, 2, 8, 3, 6});
  const auto kv = compress(in.compress());
  const auto visible = (place(kv.k.size(1)) * in.g.d + in.g.l - 1).le(place(kTokens).unsqueeze(1));
  const std::int64_t blind = in.g.l - 1;  // tokens that see nothing
  const auto seeing = [&](const at::Tensor& o) { return o.narrow(1, blind, kTokens - blind); };
  expect_as_torch(
      "compressed",
      [&](const auto& q, const auto& k, const auto& v) {
        return seeing(attend_compressed({q, {k, v}, in.g, {}}).o);
      },
      [&](const auto& q, const auto& k, const auto& v) {
        return plain(seeing(q), k, v, visible.narrow(0, blind, kTokens - blind));
      },
      {in.q, kv.k, kv.v});
}

TEST(SdpaRounding, TheSelectedBranch) {
  const Inputs in = with_window(6, {4, 2, 8, 8, 6});
  const auto blocks = in.blocks();
  const auto chosen =
      at::zeros({kTokens, selection_blocks(in.g, kTokens) + 1}, at::kBool)
          .scatter_(1, blocks[0].squeeze(1).to(at::kLong).remainder(selection_blocks(in.g, kTokens) + 1), true);
  const auto visible = chosen.index_select(1, at::floor_divide(place(kTokens), in.g.l_sel))
                           .logical_and(place(kTokens).le(place(kTokens).unsqueeze(1)));
  for (const auto how : {Selection::packed_safe, Selection::masked})
    expect_as_torch(
        how == Selection::masked ? "masked" : "packed_safe",
        [&](const auto& q, const auto& k, const auto& v) {
          return attend_selected({q, k, v, blocks, in.g, {}}, how).o;
        },
        [&](const auto& q, const auto& k, const auto& v) { return plain(q, k, v, visible); }, {in.q, in.k, in.v});
}

}  // namespace
}  // namespace nsa::sdpa
