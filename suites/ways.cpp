#include "suites/ways.hpp"

#include <algorithm>
#include <stdexcept>

#include "suites/locations.hpp"

namespace suites {

namespace {

using nsa::Backend;
using nsa::EffectiveFlags;
using nsa::RouteVariant;
using enum nsa::Op;

void ask_reference(EffectiveFlags& flags, bool on) { flags.force_parity = on; }
void ask_masked(EffectiveFlags& flags, bool on) {
  flags.sel_pack = !on;
  flags.sel_mask = on;
}
void ask_flash(EffectiveFlags& flags, bool on) { flags.fa2_all = flags.fa2_win = flags.fa2_cmp = on; }
void ask_flash_dense(EffectiveFlags& flags, bool on) {
  ask_flash(flags, on);
  flags.fa2_force_dense = on;
}
void ask_flash_varlen(EffectiveFlags& flags, bool on) {
  ask_flash(flags, on);
  flags.fa2_force_varlen = on;
}
void ask_flash_masked(EffectiveFlags& flags, bool on) {
  ask_flash(flags, on);
  ask_masked(flags, on);
}
void ask_cuda(EffectiveFlags& flags, bool on) { flags.use_cuda = on; }

// Compressed attention needs one block, and below the flags' lengths the route takes another way.
std::int64_t fewest_of_flash(const nsa::Geometry& geometry) {
  const EffectiveFlags standard;
  return std::max<std::int64_t>({standard.fa2_min_len_win, standard.fa2_min_len_cmp, geometry.l});
}

using Parts = std::map<nsa::Op, Part>;

// All by one backend, attention part by part, but for what is said otherwise.
Parts by(Backend backend, const Parts& otherwise) {
  Parts parts = otherwise;
  for (const nsa::Op op : nsa::kAllOps)
    parts.try_emplace(op, Part{backend, op == attend ? RouteVariant::in_parts : RouteVariant::none});
  return parts;
}

const Part kPackedSafe{Backend::sdpa, RouteVariant::packed_safe}, kMasked{Backend::sdpa, RouteVariant::masked},
    kAnyFlash{Backend::flash, {}}, kDense{Backend::flash, RouteVariant::dense},
    kVarlen{Backend::flash, RouteVariant::varlen};

// The window by `window`, the compressed branch always by the varlen entry, the rest by sdpa.
Parts by_flash(const Part& window, const Part& selected = kPackedSafe) {
  return by(Backend::sdpa, {{attend_window, window}, {attend_compressed, kVarlen}, {attend_selected, selected}});
}

}  // namespace

bool Part::holds(const nsa::Choice& choice) const {
  return choice.backend == backend && (!variant || choice.variant == *variant);
}

std::string to_string(const Part& part) {
  return nsa::to_string(nsa::Choice{part.backend, part.variant.value_or(RouteVariant::none), ""});
}

EffectiveFlags Way::flags(EffectiveFlags others) const {
  const EffectiveFlags standard;  // of what is asked for by length
  others.fa2_min_len_win = standard.fa2_min_len_win;
  others.fa2_min_len_cmp = standard.fa2_min_len_cmp;
  for (const Way& way : ways())
    if (way.ask) way.ask(others, false);
  if (ask) ask(others, true);
  return others;
}

std::string Way::refusal(const nsa::Call& call) const {
  const nsa::Op shown = shown_by.front();
  return nsa::refusal(parts.at(shown).backend, call, shown);
}

const std::vector<Way>& ways() {
  static const std::vector<nsa::Op> every(nsa::kAllOps.begin(), nsa::kAllOps.end());
  static const std::vector<at::ScalarType> wide = {at::kDouble, at::kFloat, at::kBFloat16}, narrow = {at::kBFloat16};
  using enum Way::OfModel;
  static const std::vector<Way> all = {
      {.name = "reference",
       .ask = ask_reference,
       .parts = by(Backend::reference, {}),
       .shown_by = {attend_window},
       .ops = every,
       .dtypes = wide,
       .of_model = checked,
       .title = "reference",
       .asked_by = [](const EffectiveFlags& flags) { return flags.force_parity; }},
      {.name = "sdpa",
       .parts = by(Backend::sdpa, {{attend_selected, kPackedSafe}}),
       .shown_by = {attend_selected},
       .ops = every,
       .dtypes = wide,
       .of_model = checked,
       .title = "sdpa"},
      {.name = "sdpa_masked",
       .ask = ask_masked,
       .parts = by(Backend::sdpa, {{attend_selected, kMasked}}),
       .shown_by = {attend_selected},
       .ops = {attend_selected},
       .dtypes = wide,
       .of_model = checked,
       .title = "masked selection"},
      {.name = "sdpa_packed",
       .parts = by(Backend::sdpa, {{attend_selected, {Backend::sdpa, RouteVariant::packed}}}),
       .shown_by = {attend_selected},
       .ops = {attend_selected},
       .dtypes = wide,
       .gradients = false},
      {.name = "flash_dense",
       .ask = ask_flash_dense,
       .parts = by_flash(kDense),
       .shown_by = {attend_window},
       .needs_cuda = true,
       .ops = {attend_window},
       .dtypes = narrow,
       .packed = false,  // that is the varlen entry's
       .fewest_tokens = fewest_of_flash},
      {.name = "flash_varlen",
       .ask = ask_flash_varlen,
       .parts = by_flash(kVarlen),
       .shown_by = {attend_window},
       .needs_cuda = true,
       .ops = {attend_compressed, attend_window},
       .dtypes = narrow,
       .fewest_tokens = fewest_of_flash},
      {.name = "flash",
       .ask = ask_flash,
       .parts = by_flash(kAnyFlash),
       .shown_by = {attend_window},
       .needs_cuda = true,
       .fewest_tokens = fewest_of_flash,
       .of_model = checked,
       .title = "FlashAttention-2",
       // A branch that asked for it keeps it: before the kernels, which are asked for by default.
       .asked_by = [](const EffectiveFlags& flags) { return flags.fa2_win || flags.fa2_cmp; }},
      {.name = "flash_masked",
       .ask = ask_flash_masked,
       .parts = by_flash(kAnyFlash, kMasked),
       .shown_by = {attend_window},
       .needs_cuda = true,
       .fewest_tokens = fewest_of_flash,
       .of_model = measured,
       .title = "FlashAttention-2 with masked selection"},
      {.name = "cuda",
       .ask = ask_cuda,
       .parts = by(Backend::cuda, {{attend, {Backend::cuda, RouteVariant::in_one}}}),
       .shown_by = {attend, attend_selected},
       .needs_cuda = true,
       .ops = every,
       .dtypes = narrow,
       .shares_tiles = true,
       .makes_masks = false,  // intervals and lists of blocks
       .of_model = checked,
       .title = "our own kernels",
       .asked_by = [](const EffectiveFlags& flags) { return flags.use_cuda; }}};
  return all;
}

std::vector<const Way*> model_ways(Way::OfModel at_least) {
  std::vector<const Way*> all;
  for (const Way& way : ways())
    if (way.of_model >= at_least) all.push_back(&way);
  return all;
}

std::vector<Way> ways_of(const harness::Settings& settings) {
  return judges_implementation(settings) ? std::vector{way_named(kImplementation)} : ways();
}

const Way& asked_for(const EffectiveFlags& flags, bool cuda) {
  const auto found = std::find_if(ways().begin(), ways().end(), [&](const Way& way) {
    return way.asked_by && (cuda || !way.needs_cuda) && way.asked_by(flags);
  });
  return found == ways().end() ? way_named("sdpa") : *found;
}

const Way& way_named(const std::string& name) {
  static const Way implementation = [] {
    Way way = *std::find_if(ways().begin(), ways().end(), [](const Way& w) { return w.name == "sdpa"; });
    way.name = kImplementation;
    return way;
  }();
  if (name == kImplementation) return implementation;
  const auto found = std::find_if(ways().begin(), ways().end(), [&](const Way& w) { return w.name == name; });
  if (found == ways().end()) throw std::out_of_range("no way of computing is called " + name);
  return *found;
}

bool took(std::span<const nsa::Taken> record, const Way& way) {
  return std::any_of(record.begin(), record.end(), [&](const nsa::Taken& taken) {
    const bool shows = std::find(way.shown_by.begin(), way.shown_by.end(), taken.op) != way.shown_by.end();
    return shows && way.parts.at(taken.op).holds(taken.choice);
  });
}

}  // namespace suites
