#include "suites/init_stats/law.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace suites::init_laws {

namespace {

Law uniform_by_fan_in(std::int64_t fan_in) {
  return {Law::Kind::uniform, 1 / std::sqrt(static_cast<double>(fan_in)),
          fmt::format("uniform in +-1/sqrt(fan_in), fan_in {}", fan_in)};
}

Law xavier_uniform(std::int64_t fan_in, std::int64_t fan_out, double gain) {
  return {Law::Kind::uniform, gain * std::sqrt(6.0 / static_cast<double>(fan_in + fan_out)),
          fmt::format("Xavier-uniform with gain {}, fan_in {}, fan_out {}", gain, fan_in, fan_out)};
}

Law normal(double deviation) { return {Law::Kind::normal, deviation, fmt::format("normal, deviation {}", deviation)}; }
Law ones() { return {Law::Kind::ones, 0, "exactly 1"}; }
Law zeros() { return {Law::Kind::zeros, 0, "exactly 0"}; }

// Collects the parameters of one module.
class Collector {
 public:
  Collector(std::vector<Expected>& all, std::string prefix, std::string role)
      : all_(all), prefix_(std::move(prefix)), role_(std::move(role)) {}

  void add(const std::string& name, std::vector<std::int64_t> shape, Law law) {
    all_.push_back({prefix_ + name, std::move(shape), std::move(law), role_ + name});
  }
  // A Linear without a bias: weight [out, in].
  void linear(const std::string& name, std::int64_t in, std::int64_t out) {
    add(name + ".weight", {out, in}, uniform_by_fan_in(in));
  }

 private:
  std::vector<Expected>& all_;
  std::string prefix_, role_;
};

void add_phi(Collector& block, const std::string& name, std::int64_t l, std::int64_t width) {
  block.add(name + ".position", {l, width}, normal(0.02));
  block.linear(name + ".fc1", l * width, width);
  block.linear(name + ".fc2", width, width);
}

void add_block(Collector block, const nsa::ModelConfig& m) {
  const std::int64_t hidden = std::max<std::int64_t>(1, m.d_k / 2);
  block.add("norm_attention.weight", {m.dim}, ones());
  block.linear("attention.q", m.dim, m.n_heads * m.d_k);
  for (const std::string branch : {"cmp", "sel", "win"}) {
    block.linear("attention.k_" + branch, m.dim, m.n_kv_groups * m.d_k);
    block.linear("attention.v_" + branch, m.dim, m.n_kv_groups * m.d_v);
  }
  if (m.phi == nsa::Phi::mlp) {
    add_phi(block, "attention.phi_k", m.nsa.l, m.d_k);
    add_phi(block, "attention.phi_v", m.nsa.l, m.d_v);
  }
  block.add("attention.gate.fc1.weight", {hidden, m.d_k}, uniform_by_fan_in(m.d_k));
  block.add("attention.gate.fc1.bias", {hidden}, uniform_by_fan_in(m.d_k));
  block.add("attention.gate.fc2.weight", {3, hidden}, xavier_uniform(hidden, 3, 0.1));
  block.add("attention.gate.fc2.bias", {3}, zeros());
  block.linear("attention.o", m.n_heads * m.d_v, m.dim);
  block.add("norm_mlp.weight", {m.dim}, ones());
  block.linear("mlp.fc1", m.dim, 4 * m.dim);
  block.linear("mlp.fc2", 4 * m.dim, m.dim);
}

}  // namespace

double Law::deviation() const {
  if (kind == Kind::uniform) return scale / std::numbers::sqrt3;
  return kind == Kind::normal ? scale : 0;
}

double Law::cdf(double x) const {
  if (kind == Kind::uniform) return std::clamp((x / scale + 1) / 2, 0.0, 1.0);
  if (kind == Kind::normal) return std::erfc(-x / (scale * std::numbers::sqrt2)) / 2;
  return x >= (kind == Kind::ones ? 1 : 0) ? 1 : 0;
}

double Law::rounding_slope() const {
  if (kind == Kind::uniform) return 0.5;                    // a * 1/(2a), at the edge
  return std::exp(-0.5) / std::sqrt(2 * std::numbers::pi);  // at one deviation
}

std::vector<Expected> expected_parameters(const nsa::ModelConfig& m) {
  std::vector<Expected> all;
  Collector model(all, "", "");
  model.add("embedding.weight", {m.vocab, m.dim}, normal(1));
  for (std::int64_t i = 0; i < m.n_layers; ++i) {
    add_block(Collector(all, fmt::format("layers.{}.", i), "layers.*."), m);
  }
  model.add("norm.weight", {m.dim}, ones());
  model.linear("head", m.dim, m.vocab);
  return all;
}

}  // namespace suites::init_laws
