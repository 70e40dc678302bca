#include "suites/flag_matrix/footprint.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include "nsa/cuda/cuda.hpp"
#include "nsa/flash/flash.hpp"
#include "nsa/reference/reference.hpp"
#include "nsa/sdpa/sdpa.hpp"
#include "suites/ways.hpp"

namespace suites::flag_footprint {

namespace {

std::int64_t total(const OpCounts& ops) {
  std::int64_t sum = 0;
  for (const auto& [op, times] : ops) sum += times;
  return sum;
}

// The functions of one part of the table of ways, called by their names: the product's dispatch is what is judged.
nsa::Ops functions_of(const Part& part) {
  using nsa::RouteVariant;
  using nsa::flash::Entry;
  using nsa::sdpa::Selection;
  const RouteVariant variant = part.variant.value_or(RouteVariant::none);
  switch (part.backend) {
    case nsa::Backend::reference:
      return nsa::reference::ops();
    case nsa::Backend::sdpa:
      return nsa::sdpa::ops(variant == RouteVariant::masked   ? Selection::masked
                            : variant == RouteVariant::packed ? Selection::packed
                                                              : Selection::packed_safe);
    case nsa::Backend::flash:
      return nsa::flash::ops(variant == RouteVariant::varlen ? Entry::varlen : Entry::dense);
    case nsa::Backend::cuda:
      return nsa::cuda::ops();
  }
  throw std::logic_error("Backend outside its enumeration");
}

void call(const nsa::Ops& functions, nsa::Op op, const Inputs& in) {
  if (op == nsa::Op::attend_compressed)
    (void)functions.attend_compressed(in.compressed);
  else if (op == nsa::Op::attend_selected)
    (void)functions.attend_selected(in.selected);
  else
    (void)functions.attend_window(in.window);
}

// The second call is the one that counts: the first may allocate what later ones reuse.
std::optional<OpCounts> left_by(const std::function<void()>& work) try {
  work();
  const probes::OpTrace trace;
  work();
  return trace.all();
} catch (const nsa::Unsupported&) {  // not a way on this device, dtype or shape
  return std::nullopt;
}

// Every way on these inputs as they lie.
std::map<std::string, std::vector<Footprint>> shown(const Inputs& in) {
  std::map<std::string, std::vector<Footprint>> all;
  for (const Way& way : ways()) {
    if (!way.gradients && at::GradMode::is_enabled()) continue;
    for (const nsa::Op op : {nsa::Op::attend_compressed, nsa::Op::attend_selected, nsa::Op::attend_window}) {
      if (std::find(way.ops.begin(), way.ops.end(), op) == way.ops.end()) continue;
      const Part& part = way.parts.at(op);
      if (!way.packed && in.window.cu_seqlens) continue;
      const std::string name(nsa::to_string(op));
      const auto ops = left_by([&, functions = functions_of(part)] { call(functions, op, in); });
      if (ops)
        all[name].push_back({name_of(name, {part.backend, part.variant.value_or(nsa::RouteVariant::none), ""}), *ops});
    }
  }
  return all;
}

Inputs contiguous(Inputs in) {
  for (at::Tensor* t : {&in.compressed.q, &in.compressed.kv.k, &in.compressed.kv.v, &in.selected.q, &in.selected.k,
                        &in.selected.v, &in.window.q, &in.window.k, &in.window.v})
    *t = t->contiguous();
  return in;
}

}  // namespace

std::string name_of(std::string_view op, const nsa::Choice& choice) {
  if (choice.backend == nsa::Backend::flash)
    return op == "attend_window" ? "flash_" + std::string(nsa::to_string(choice.variant)) : "flash";
  if (op == "attend_selected" && choice.backend == nsa::Backend::sdpa)
    return std::string(nsa::to_string(choice.variant));
  return std::string(nsa::to_string(choice.backend));
}

OpCounts missing(const OpCounts& wanted, const OpCounts& ran) {
  OpCounts result;
  for (const auto& [op, times] : wanted) {
    const auto found = ran.find(op);
    const std::int64_t had = found == ran.end() ? 0 : found->second;
    if (had < times) result[op] = times - had;
  }
  return result;
}

std::vector<std::string> closest(const OpCounts& ran, const std::vector<Footprint>& all) {
  std::vector<std::string> names;
  std::pair<std::int64_t, std::int64_t> best{};
  for (const Footprint& known : all) {
    const std::pair distance{total(missing(known.ops, ran)), total(missing(ran, known.ops))};
    if (names.empty() || distance < best) {
      best = distance;
      names = {known.way};
    } else if (distance == best && std::find(names.begin(), names.end(), known.way) == names.end()) {
      names.push_back(known.way);
    }
  }
  return names;
}

std::map<std::string, std::vector<Footprint>> demonstrate(const Inputs& in) {
  std::map<std::string, std::vector<Footprint>> all = shown(in);
  for (auto& [op, others] : shown(contiguous(in)))
    for (Footprint& other : others) {
      std::vector<Footprint>& known = all[op];
      const bool same = std::any_of(known.begin(), known.end(),
                                    [&](const Footprint& k) { return k.way == other.way && k.ops == other.ops; });
      if (!same) known.push_back(std::move(other));
    }
  return all;
}

}  // namespace suites::flag_footprint
