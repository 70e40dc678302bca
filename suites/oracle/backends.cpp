#include "suites/oracle/backends.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "harness/context.hpp"
#include "nsa/cuda/features.hpp"

namespace suites::oracle {

namespace {

using enum nsa::Op;

nsa::EffectiveFlags flags_of(const Way& way) {
  nsa::EffectiveFlags flags;
  flags.force_parity = way.name == "reference";
  flags.use_cuda = way.name == "cuda";
  if (way.name == "sdpa_masked") {
    flags.sel_pack = false;
    flags.sel_mask = true;
  }
  if (way.name.starts_with("flash")) flags.fa2_all = flags.fa2_win = flags.fa2_cmp = true;
  flags.fa2_force_dense = way.name == "flash_dense";
  flags.fa2_force_varlen = way.name == "flash_varlen";
  return flags;
}

// Learned compression is sdpa's by every way but the reference.
bool learned(const OpShape& shape, nsa::Op op) { return op == compress && shape.phi == nsa::Phi::mlp; }

std::string wanted_route(const Way& way, const OpShape& shape, nsa::Op op) {
  if (op == attend) return way.name == "cuda" ? "cuda/in_one" : fmt::format("{}/in_parts", way.name);
  if (way.name == "reference") return "reference/";
  if (way.name == "cuda") return learned(shape, op) ? "sdpa/" : "cuda/";
  if (way.name == "flash_dense") return op == attend_window ? "flash/dense" : "flash/varlen";
  if (way.name == "flash_varlen") return "flash/varlen";
  if (op != attend_selected) return "sdpa/";
  return way.name == "sdpa_masked" ? "sdpa/masked" : way.name == "sdpa_packed" ? "sdpa/packed" : "sdpa/packed_safe";
}

}  // namespace

const std::vector<Way>& ways() {
  static const std::vector<Way> all = {
      {"reference", {nsa::kAllOps.begin(), nsa::kAllOps.end()}, true, false, {at::kDouble, at::kFloat, at::kBFloat16}},
      {"sdpa", {nsa::kAllOps.begin(), nsa::kAllOps.end()}, true, false, {at::kDouble, at::kFloat, at::kBFloat16}},
      {"sdpa_masked", {attend_selected}, true, false, {at::kDouble, at::kFloat, at::kBFloat16}},
      {"sdpa_packed", {attend_selected}, false, false, {at::kDouble, at::kFloat, at::kBFloat16}},
      {"flash_dense", {attend_window}, true, true, {at::kBFloat16}},
      {"flash_varlen", {attend_compressed, attend_window}, true, true, {at::kBFloat16}},
      {"cuda", {nsa::kAllOps.begin(), nsa::kAllOps.end()}, true, true, {at::kBFloat16}}};
  return all;
}

const Way& way(const std::string& name) {
  const auto found = std::find_if(ways().begin(), ways().end(), [&](const Way& w) { return w.name == name; });
  if (found == ways().end()) throw std::out_of_range("no way of computing is called " + name);
  return *found;
}

std::string refusal(const Way& way, const OpShape& shape, nsa::Op op, at::ScalarType dtype, at::Device device) {
  if (way.name != "cuda" || learned(shape, op)) return "";
  return nsa::cuda_refusal(call_of(shape, dtype, device, way.gradients), op);
}

nsa::Ops ops_of(const Subject& subject, const Way& way, const OpShape& shape, nsa::Op op, at::ScalarType dtype,
                at::Device device) {
  if (const std::string reason = refusal(way, shape, op, dtype, device); !reason.empty())
    throw harness::Skipped{"unsupported", fmt::format("cuda does not serve {}: {}", nsa::to_string(op), reason)};
  const nsa::Call call = call_of(shape, dtype, device, way.gradients);
  const nsa::EffectiveFlags flags = flags_of(way);
  const nsa::Choice choice = nsa::route(flags, call)[op];
  const std::string taken = fmt::format("{}/{}", nsa::to_string(choice.backend), choice.variant);
  if (taken != wanted_route(way, shape, op)) {
    throw std::logic_error(
        fmt::format("{} by {} would run as {}: {}", nsa::to_string(op), way.name, taken, choice.why));
  }
  return subject.ops(flags, call);
}

OpShape shape_for(const Way& way, OpShape shape) {
  if (way.needs_cuda) shape.Dk = shape.Dv = 64;
  return shape;
}

}  // namespace suites::oracle
