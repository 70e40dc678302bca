#include "suites/flag_matrix/ways.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "nsa/cuda/cuda.hpp"
#include "nsa/cuda/features.hpp"
#include "nsa/flash/flash.hpp"
#include "nsa/reference/reference.hpp"
#include "nsa/sdpa/sdpa.hpp"

namespace suites::flag_ways {

namespace {

std::int64_t total(const OpCounts& ops) {
  std::int64_t sum = 0;
  for (const auto& [op, times] : ops) sum += times;
  return sum;
}

// The second call is the one that counts: the first may allocate what later ones reuse.
void add(std::vector<Way>& ways, const std::string& name, const std::function<void()>& call) {
  try {
    call();
    const probes::OpTrace trace;
    call();
    ways.push_back({name, trace.all()});
  } catch (const nsa::Unsupported&) {  // not a way on this device, dtype or shape
  }
}

// Every way on these inputs as they lie.
std::map<std::string, std::vector<Way>> shown(const Inputs& in) {
  using nsa::sdpa::Selection;
  std::map<std::string, std::vector<Way>> all;

  std::vector<Way>& compressed = all["attend_compressed"];
  add(compressed, "reference", [&] { (void)nsa::reference::attend_compressed(in.compressed); });
  add(compressed, "sdpa", [&] { (void)nsa::sdpa::attend_compressed(in.compressed); });
  add(compressed, "flash", [&] { (void)nsa::flash::attend_compressed(in.compressed); });
  add(compressed, "cuda", [&] { (void)nsa::cuda::attend_compressed(in.compressed); });

  std::vector<Way>& selected = all["attend_selected"];
  add(selected, "reference", [&] { (void)nsa::reference::attend_selected(in.selected); });
  add(selected, "masked", [&] { (void)nsa::sdpa::attend_selected(in.selected, Selection::masked); });
  add(selected, "packed_safe", [&] { (void)nsa::sdpa::attend_selected(in.selected, Selection::packed_safe); });
  add(selected, "cuda", [&] { (void)nsa::cuda::attend_selected(in.selected); });
  if (!at::GradMode::is_enabled()) {  // a reused workspace is refused under autograd
    add(selected, "packed", [&] { (void)nsa::sdpa::attend_selected(in.selected, Selection::packed); });
  }

  std::vector<Way>& window = all["attend_window"];
  add(window, "reference", [&] { (void)nsa::reference::attend_window(in.window); });
  add(window, "sdpa", [&] { (void)nsa::sdpa::attend_window(in.window); });
  if (!in.window.cu_seqlens)  // a packed batch has one entry point
    add(window, "flash_dense", [&] { (void)nsa::flash::attend_window(in.window, nsa::flash::Entry::dense); });
  add(window, "flash_varlen", [&] { (void)nsa::flash::attend_window(in.window, nsa::flash::Entry::varlen); });
  add(window, "cuda", [&] { (void)nsa::cuda::attend_window(in.window); });
  return all;
}

Inputs contiguous(Inputs in) {
  for (at::Tensor* t : {&in.compressed.q, &in.compressed.kv.k, &in.compressed.kv.v, &in.selected.q, &in.selected.k,
                        &in.selected.v, &in.window.q, &in.window.k, &in.window.v})
    *t = t->contiguous();
  return in;
}

}  // namespace

OpCounts missing(const OpCounts& wanted, const OpCounts& ran) {
  OpCounts result;
  for (const auto& [op, times] : wanted) {
    const auto found = ran.find(op);
    const std::int64_t had = found == ran.end() ? 0 : found->second;
    if (had < times) result[op] = times - had;
  }
  return result;
}

std::vector<std::string> closest(const OpCounts& ran, const std::vector<Way>& ways) {
  std::vector<std::string> names;
  std::pair<std::int64_t, std::int64_t> best{};
  for (const Way& way : ways) {
    const std::pair distance{total(missing(way.ops, ran)), total(missing(ran, way.ops))};
    if (names.empty() || distance < best) {
      best = distance;
      names = {way.name};
    } else if (distance == best && std::find(names.begin(), names.end(), way.name) == names.end()) {
      names.push_back(way.name);
    }
  }
  return names;
}

std::map<std::string, std::vector<Way>> demonstrate(const Inputs& in) {
  std::map<std::string, std::vector<Way>> all = shown(in);
  for (auto& [op, ways] : shown(contiguous(in)))
    for (Way& way : ways) {
      std::vector<Way>& known = all[op];
      const bool same =
          std::any_of(known.begin(), known.end(), [&](const Way& k) { return k.name == way.name && k.ops == way.ops; });
      if (!same) known.push_back(std::move(way));
    }
  return all;
}

}  // namespace suites::flag_ways
