#include "suites/probes/stages.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <charconv>

namespace suites::probes {

namespace {

bool has_word(std::string_view name, std::string_view word) {
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    if (name.substr(at, dot - at) == word) return true;
    at = dot + 1;
  }
  return false;
}

}  // namespace

Stage parse_stage(std::string_view name) {
  Stage stage{std::string(name), -1, ""};
  constexpr std::string_view kLayers = "layers.";
  if (name.starts_with(kLayers)) {
    const char* const begin = name.data() + kLayers.size();
    std::int64_t layer = -1;
    if (std::from_chars(begin, name.data() + name.size(), layer).ec == std::errc{}) stage.layer = layer;
  }
  for (const std::string_view branch : {"cmp", "sel", "win"}) {
    if (has_word(name, branch)) stage.branch = branch;
  }
  return stage;
}

bool is_lse(std::string_view stage) { return has_word(stage, "lse"); }

StageLayout stage_layout(std::string_view stage, std::int64_t dimensions) {
  if (is_lse(stage) && dimensions == 3) return {2, 1};
  if (dimensions >= 4) return {1, 2};
  return {dimensions >= 2 ? 1 : -1, -1};
}

std::int64_t allowed_keys(std::string_view branch, const nsa::Geometry& g, std::int64_t t) {
  if (branch == "cmp") return t < g.l - 1 ? 0 : (t - (g.l - 1)) / g.d + 1;
  if (branch == "win") return std::min(g.w, t + 1);
  if (branch == "sel") return (std::min(g.n_sel, t / g.l_sel + 1) - 1) * g.l_sel + t % g.l_sel + 1;
  return -1;
}

RowMap::Place RowMap::place(std::int64_t t) const {
  if (!cu_seqlens) return {0, t};
  const auto begins = cu_seqlens->accessor<std::int32_t, 1>();
  Place found{0, t};
  for (std::int64_t i = 0; i + 1 < begins.size(0); ++i) {
    if (begins[i] <= t && t < begins[i + 1]) found = {i, t - begins[i]};
  }
  return found;
}

std::int64_t RowMap::allowed(const Stage& stage, std::int64_t rows, std::int64_t t) const {
  return rows == S ? allowed_keys(stage.branch, geometry, place(t).row) : -1;
}

Observing::Observing(nsa::Runtime& runtime, Observer observer) : runtime_(runtime), before_(runtime.observe) {
  runtime_.observe = [before = before_, observer = std::move(observer)](std::string_view name,
                                                                        const at::Tensor& value) {
    if (before) before(name, value);
    observer(name, value);
  };
}

Observing::~Observing() { runtime_.observe = std::move(before_); }

}  // namespace suites::probes
