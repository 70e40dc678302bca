#include "nsa/bench/call.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <stdexcept>

#include "nsa/cuda/decode.hpp"
#include "nsa/decode/step.hpp"
#include "nsa/dispatch.hpp"

namespace nsa::bench {

namespace {

using Tensors = std::vector<at::Tensor>;

constexpr std::uint64_t kSeed = 1;

// Draws the inputs of one call.
class Source {
 public:
  Source(const CallSpec& spec, at::Device device)
      : p_(spec.problem),
        options_(at::device(device).dtype(at::kBFloat16)),
        generator_(at::globalContext().defaultGenerator(device).clone()),
        differentiable_(spec.mode == Mode::fwd_bwd) {
    generator_.set_current_seed(kSeed);
  }

  at::Tensor constant(at::IntArrayRef sizes) { return at::randn(sizes, generator_, options_); }
  at::Tensor leaf(const at::Tensor& value) {
    value.set_requires_grad(differentiable_);
    leaves_.push_back(value);
    return value;
  }
  at::Tensor constant_k() { return constant({1, p_.S, p_.G, p_.Dk}); }
  at::Tensor constant_v() { return constant({1, p_.S, p_.G, p_.Dv}); }
  at::Tensor q() { return leaf(constant({1, p_.S, p_.Hq, p_.Dk})); }
  at::Tensor k() { return leaf(constant_k()); }
  at::Tensor v() { return leaf(constant_v()); }
  at::Tensor o() { return leaf(constant({1, p_.S, p_.Hq, p_.Dv})); }
  at::Tensor gates() { return leaf(at::softmax(constant({1, p_.S, p_.G, 3}), -1)); }

  [[nodiscard]] const Tensors& leaves() const { return leaves_; }

 private:
  const Problem& p_;
  at::TensorOptions options_;
  at::Generator generator_;
  bool differentiable_;
  Tensors leaves_;
};

// What the choice may take from the compressed branch.
std::optional<at::Tensor> stats_of(const Attended& compressed) {
  return compressed.stats.defined() ? std::optional(compressed.stats.detach()) : std::nullopt;
}

using Forward = std::function<at::Tensor()>;

Forward whole(const Ops& ops, Source& source, const CallSpec& spec) {
  const Geometry g = spec.problem.geometry;
  const bool windowed = spec.subject.name == "nsa";
  const auto q = source.q(), k_cmp = source.k(), v_cmp = source.v(), k_sel = source.k(), v_sel = source.v();
  const auto k_win = windowed ? source.k() : at::Tensor(), v_win = windowed ? source.v() : at::Tensor();
  const auto gates = source.gates();
  // combine takes three branches: the one that is left out is a constant.
  const auto& p = spec.problem;
  const auto nothing = windowed ? at::Tensor() : at::zeros({1, p.S, p.Hq, p.Dv}, q.options().requires_grad(false));
  if (windowed)
    return [=] {
      const Compressed blocks = ops.compress({k_cmp, v_cmp, g, {}, {}, {}});
      return ops.attend({q, blocks, k_sel, v_sel, k_win, v_win, gates, g, {}});
    };
  return [=] {
    const Compressed blocks = ops.compress({k_cmp, v_cmp, g, {}, {}, {}});
    const Attended cmp = ops.attend_compressed({q, blocks, g, {}});
    const auto chosen = ops.select({q.detach(), blocks.k.detach(), g, {}, stats_of(cmp)});
    const Attended sel = ops.attend_selected({q, k_sel, v_sel, chosen, g, {}});
    return ops.combine({gates, cmp.o, sel.o, nothing});
  };
}

// As in a model, the choice follows the compressed branch and takes from it what the backend can use.
Forward selection(const Ops& ops, Source& source, const CallSpec& spec) {
  const at::NoGradGuard guard;
  const Geometry g = spec.problem.geometry;
  const auto q = source.q();
  const Compressed blocks = ops.compress({source.k(), source.v(), g, {}, {}, {}});
  const auto stats = spec.backend == Backend::cuda ? stats_of(ops.attend_compressed({q, blocks, g, {}})) : std::nullopt;
  return [=, k_cmp = blocks.k] { return ops.select({q, k_cmp, g, {}, stats}); };
}

// Of blocks that are made beforehand.
Forward attention_call(const Ops& ops, Source& source, const CallSpec& spec) {
  const Geometry g = spec.problem.geometry;
  const auto q = source.q(), k_sel = source.k(), v_sel = source.v(), k_win = source.k(), v_win = source.v();
  const auto gates = source.gates();
  const auto made = [&] {
    const at::NoGradGuard guard;
    return ops.compress({source.constant_k(), source.constant_v(), g, {}, {}, {}});
  }();
  const Compressed blocks{source.leaf(made.k), source.leaf(made.v)};
  return [=] { return ops.attend({q, blocks, k_sel, v_sel, k_win, v_win, gates, g, {}}); };
}

// ATen's functions one by one, as a step whose attention our own kernels do not serve.
at::Tensor step_in_parts(const Ops& ops, const decode::StepOps& step, const cuda::DecodeArgs& x) {
  const auto blocks = step.select({x.q, x.k_cmp, x.t, x.k_sel.size(1), x.geometry});
  const auto chosen = [&](const at::Tensor& rows) { return decode::gather_blocks(rows, blocks, x.t, x.geometry); };
  const auto win = step.attend({x.q, x.k_win, x.v_win});
  const auto cmp = x.k_cmp.defined() ? step.attend({x.q, x.k_cmp, x.v_cmp}) : at::zeros_like(win);
  return ops.combine({x.gates, cmp, step.attend({x.q, chosen(x.k_sel), chosen(x.v_sel)}), win});
}

// The last of S tokens against the caches of some layers, one layer after the other.
Forward decoding(const Ops& ops, Source& source, const CallSpec& spec) {
  const Problem& p = spec.problem;
  const Geometry& g = p.geometry;
  const auto cache = [&](std::int64_t rows, std::int64_t width) {
    return rows > 0 ? source.constant({1, p.G, rows, width}) : at::Tensor();
  };
  std::vector<cuda::DecodeArgs> layers;
  for (int i = 0; i < spec.subject.steps; ++i) {
    const std::int64_t N = compressed_blocks(g, p.S), window = std::min(g.w, p.S);
    layers.push_back({source.constant({1, 1, p.Hq, p.Dk}), at::softmax(source.constant({1, 1, p.G, 3}), -1),
                      cache(N, p.Dk), cache(N, p.Dv), cache(p.S, p.Dk), cache(p.S, p.Dv), cache(window, p.Dk),
                      cache(window, p.Dv), p.S - 1, g});
  }
  if (spec.backend == Backend::cuda)
    return [layers] {
      at::Tensor o;
      for (const auto& layer : layers) o = cuda::decode(layer).o;
      return o;
    };
  return [=, step = decode::step_ops()] {
    at::Tensor o;
    for (const auto& layer : layers) o = step_in_parts(ops, step, layer);
    return o;
  };
}

Forward forward_of(const Ops& ops, Source& source, const CallSpec& spec, at::Device device) {
  const Geometry g = spec.problem.geometry;
  const std::string& name = spec.subject.name;
  if (spec.subject.whole) return whole(ops, source, spec);
  if (name == "select") return selection(ops, source, spec);
  if (name == "decode") return decoding(ops, source, spec);
  if (name == "attend") return attention_call(ops, source, spec);
  if (name == "combine") {
    const auto gates = source.gates(), o_cmp = source.o(), o_sel = source.o(), o_win = source.o();
    return [=] { return ops.combine({gates, o_cmp, o_sel, o_win}); };
  }
  const auto q = source.q(), k = source.k(), v = source.v();
  if (name == "compressed")
    return [=] { return ops.attend_compressed({q, ops.compress({k, v, g, {}, {}, {}}), g, {}}).o; };
  if (name == "window") return [=] { return ops.attend_window({q, k, v, g, {}}).o; };
  if (name == "selected") {
    const auto blocks = choose_blocks(spec.choice, {spec.problem.S, spec.problem.G, g}, kSeed, device);
    return [=] { return ops.attend_selected({q, k, v, blocks, g, {}}).o; };
  }
  throw std::logic_error("nobody knows how to call " + name);
}

}  // namespace

std::function<void()> make_call(const CallSpec& spec, at::Device device) {
  Source source(spec, device);
  const Forward forward = forward_of(backend_ops(spec.backend), source, spec, device);
  if (spec.mode == Mode::fwd)
    return [forward] {
      const at::NoGradGuard guard;
      (void)forward();
    };
  const auto& p = spec.problem;
  return [forward, leaves = source.leaves(), dout = source.constant({1, p.S, p.Hq, p.Dv})] {
    (void)torch::autograd::grad({forward()}, leaves, {dout});
  };
}

}  // namespace nsa::bench
