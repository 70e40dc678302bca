#include "suites/ways.hpp"

#include <algorithm>
#include <stdexcept>

namespace suites {

namespace {

using nsa::Backend;
using nsa::EffectiveFlags;
using enum nsa::Op;

void set_sdpa(EffectiveFlags& flags) {
  const EffectiveFlags standard;
  flags.force_parity = flags.use_cuda = flags.sel_mask = false;
  flags.sel_pack = true;
  flags.fa2_all = flags.fa2_win = flags.fa2_cmp = flags.fa2_force_dense = flags.fa2_force_varlen = false;
  flags.fa2_min_len_win = standard.fa2_min_len_win;
  flags.fa2_min_len_cmp = standard.fa2_min_len_cmp;
}
void set_reference(EffectiveFlags& flags) {
  set_sdpa(flags);
  flags.force_parity = true;
}
void mask(EffectiveFlags& flags) {
  flags.sel_pack = false;
  flags.sel_mask = true;
}
void set_masked(EffectiveFlags& flags) {
  set_sdpa(flags);
  mask(flags);
}
void set_flash(EffectiveFlags& flags) {
  set_sdpa(flags);
  flags.fa2_all = flags.fa2_win = flags.fa2_cmp = true;
}
void set_flash_dense(EffectiveFlags& flags) {
  set_flash(flags);
  flags.fa2_force_dense = true;
}
void set_flash_varlen(EffectiveFlags& flags) {
  set_flash(flags);
  flags.fa2_force_varlen = true;
}
void set_flash_masked(EffectiveFlags& flags) {
  set_flash(flags);
  mask(flags);
}
void set_cuda(EffectiveFlags& flags) {
  set_sdpa(flags);
  flags.use_cuda = true;
}

bool is_flash(const Way& way) { return way.name.starts_with("flash"); }

}  // namespace

bool Part::holds(const nsa::Choice& choice) const {
  return choice.backend == backend && (!variant || choice.variant == *variant);
}

std::string to_string(const Part& part) {
  return nsa::to_string(nsa::Choice{part.backend, part.variant.value_or(""), ""});
}

EffectiveFlags Way::flags(EffectiveFlags others) const {
  set(others);
  return others;
}

Part Way::part(nsa::Op op, bool learned) const {
  const bool reference = name == "reference", cuda = name == "cuda";
  if (op == attend && cuda) return {Backend::cuda, "in_one"};
  if (op == attend) return {reference ? Backend::reference : Backend::sdpa, "in_parts"};
  if (reference) return {Backend::reference, ""};
  if (cuda) return {op == compress && learned ? Backend::sdpa : Backend::cuda, ""};
  if (is_flash(*this) && op == attend_window)
    return {Backend::flash, name == "flash_dense"    ? std::optional<std::string>("dense")
                            : name == "flash_varlen" ? std::optional<std::string>("varlen")
                                                     : std::nullopt};
  if (is_flash(*this) && op == attend_compressed) return {Backend::flash, "varlen"};
  if (op != attend_selected) return {Backend::sdpa, ""};
  return {Backend::sdpa, name.ends_with("_masked") ? "masked" : gradients ? "packed_safe" : "packed"};
}

const std::vector<Way>& ways() {
  static const std::vector<nsa::Op> every(nsa::kAllOps.begin(), nsa::kAllOps.end());
  static const std::vector<at::ScalarType> wide = {at::kDouble, at::kFloat, at::kBFloat16}, narrow = {at::kBFloat16};
  static const std::vector<Way> all = {
      {.name = "reference", .set = set_reference, .ops = every, .dtypes = wide},
      {.name = "sdpa", .set = set_sdpa, .ops = every, .dtypes = wide},
      {.name = "sdpa_masked", .set = set_masked, .ops = {attend_selected}, .dtypes = wide},
      {.name = "sdpa_packed", .set = set_sdpa, .ops = {attend_selected}, .dtypes = wide, .gradients = false},
      {.name = "flash_dense", .set = set_flash_dense, .needs_cuda = true, .ops = {attend_window}, .dtypes = narrow},
      {.name = "flash_varlen",
       .set = set_flash_varlen,
       .needs_cuda = true,
       .ops = {attend_compressed, attend_window},
       .dtypes = narrow},
      {.name = "cuda", .set = set_cuda, .needs_cuda = true, .ops = every, .dtypes = narrow},
      {.name = "flash", .set = set_flash, .needs_cuda = true},
      {.name = "flash_masked", .set = set_flash_masked, .needs_cuda = true}};
  return all;
}

const Way& way_named(const std::string& name) {
  const auto found = std::find_if(ways().begin(), ways().end(), [&](const Way& w) { return w.name == name; });
  if (found == ways().end()) throw std::out_of_range("no way of computing is called " + name);
  return *found;
}

bool took(std::span<const nsa::Taken> record, const Way& way) {
  const auto ran = [&](nsa::Op op) {
    return std::any_of(record.begin(), record.end(),
                       [&](const nsa::Taken& taken) { return taken.op == op && way.part(op).holds(taken.choice); });
  };
  if (way.name == "cuda") return ran(attend) || ran(attend_selected);
  return ran(is_flash(way) || way.name == "reference" ? attend_window : attend_selected);
}

}  // namespace suites
