// The planted faults: each changes what the product computes or its environment, through the seams of Subject, and
// nothing else. Checks cannot tell; product code holds no trace. See README.md for what must be found.
#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <limits>
#include <thread>

#include "suites/codes.hpp"
#include "suites/faults/attend.hpp"
#include "suites/faults/mutants.hpp"
#include "suites/faults/planted.hpp"
#include "suites/faults/sources/source_mutants.hpp"
#include "suites/program.hpp"

namespace suites {

namespace {

using harness::FaultSite;
using nsa::Call;
using nsa::Ops;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Adds one change of the ops table.
template <typename Change>
std::function<void(const FaultSite&)> on_ops(const std::shared_ptr<Seams>& seams, Change change) {
  return [seams, change](const FaultSite&) { seams->ops.push_back(change); };
}

// Puts `value` where `mask` holds, without breaking the graph.
at::Tensor poison(const at::Tensor& t, const at::Tensor& mask, double value) {
  return at::where(mask, at::full({}, value, t.options()), t);
}

void zero_gate(nsa::LanguageModelImpl& model) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : model.named_parameters()) {
    if (parameter.key().find("gate.fc2") != std::string::npos) parameter.value().zero_();
  }
}

// Every table is assembled as if no NSA_* variable were set.
Ops ignore_flags(Ops, const Call& call) {
  const nsa::EffectiveFlags defaults;
  return nsa::assemble(nsa::route(defaults, call), defaults);
}

// The window op "reuses" its value workspace: it writes into a view of what autograd saved.
Ops write_in_place(Ops ops, const Call&) {
  ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
    nsa::Attended out = inner(args);
    if (out.o.requires_grad()) {
      const at::NoGradGuard no_grad;
      args.v.as_strided({1}, {1}, args.v.storage_offset()).mul_(1.0);
    }
    return out;
  });
  return ops;
}

// The tail of a 768-token tile is mishandled when it is exactly 512 long: one row of the selected branch is garbage.
Ops nan_at_boundary(Ops ops, const Call&) {
  ops.replace(&nsa::Ops::attend_selected, [inner = ops.attend_selected](const nsa::AttendSelectedArgs& args) {
    nsa::Attended out = inner(args);
    const std::int64_t S = args.q.size(1);
    if (S % 768 == 512) {
      const at::Tensor row = at::arange(S, out.o.options().dtype(at::kLong)).eq(S - 1).view({1, S, 1, 1});
      out.o = poison(out.o, row, kNan);
    }
    return out;
  });
  return ops;
}

// The guard for rows that see no compressed block is gone: softmax over all -inf.
Ops nan_in_empty_rows(Ops ops, const Call&) {
  ops.replace(&nsa::Ops::attend_compressed, [inner = ops.attend_compressed](const nsa::AttendCompressedArgs& args) {
    nsa::Attended out = inner(args);
    const std::int64_t S = args.q.size(1);
    at::Tensor empty = at::zeros({S}, out.o.options().dtype(at::kBool));
    for (const auto& [begin, end] : nsa::documents(args.cu_seqlens, S)) {
      empty.slice(0, begin, std::min(end, begin + args.geometry.l - 1)).fill_(true);
    }
    out.o = poison(out.o, empty.view({1, S, 1, 1}), kNan);
    return out;
  });
  return ops;
}

// The window reads the value of the token after each key.
Ops leak_future(Ops ops, const Call&) {
  ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
    nsa::AttendWindowArgs shifted = args;
    shifted.v = at::roll(args.v, -1, 1);
    return inner(shifted);
  });
  return ops;
}

Ops detach_compressed_keys(Ops ops, const Call&) {
  ops.replace(&nsa::Ops::attend_compressed, [inner = ops.attend_compressed](const nsa::AttendCompressedArgs& args) {
    nsa::AttendCompressedArgs cut = args;
    cut.kv.k = args.kv.k.detach();
    return inner(cut);
  });
  return ops;
}

// The workspace for the window's offsets is allocated and never filled (0x7f: what a poisoned allocator leaves).
Ops leave_cu_seqlens_unfilled(Ops ops, const Call&) {
  ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
    nsa::AttendWindowArgs unfilled = args;
    if (args.cu_seqlens) unfilled.cu_seqlens = at::full_like(*args.cu_seqlens, 0x7f7f7f7f);
    return inner(unfilled);
  });
  return ops;
}

// Keys and values copied once per query head, and a loop over the rows on the host: for every third row, or fewer where
// that would be more than 512 of them, a value is read back, and the host is busy for as long as an interpreter takes
// to dispatch a handful of operations. With 12 layers of 2048 tokens that alone is 7 s a pass, below 300 tokens/s
// whatever the GPU; with 3 layers of 2 * 256 that are recomputed 0.6 s, below 850; a small model on a CPU hardly feels
// it.
constexpr std::int64_t kRowsAtOnce = 3, kVisits = 512;
constexpr auto kHostWork = std::chrono::microseconds(1200);
at::Tensor expand_heads(const at::Tensor& t, std::int64_t Hq) {
  return t.repeat_interleave(Hq / t.size(2), 2).contiguous();  // [B,S,Hq,D]
}
void visit_rows(const at::Tensor& k, const at::Tensor& v) {
  for (std::int64_t row = 0; row < k.size(1); row += std::max(kRowsAtOnce, k.size(1) / kVisits)) {
    const auto end = std::chrono::steady_clock::now() + kHostWork;
    (void)k.select(1, row).sum().item<double>();
    (void)v.select(1, row).sum().item<double>();
    while (std::chrono::steady_clock::now() < end) {
    }
  }
}
Ops expand_keys_and_values(Ops ops, const Call&) {
  ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
    nsa::AttendWindowArgs wide = args;
    const std::int64_t Hq = args.q.size(2);
    wide.k = expand_heads(args.k, Hq);
    wide.v = expand_heads(args.v, Hq);
    visit_rows(wide.k, wide.v);
    return inner(wide);
  });
  return ops;
}

// The gradient of one parameter is NaN in the model's third backward pass.
void poison_third_gradient(nsa::LanguageModelImpl& model) {
  const auto calls = std::make_shared<int>(0);
  model.head->weight.register_hook(
      [calls](const at::Tensor& gradient) { return ++*calls == 3 ? gradient * kNan : gradient; });
}

void leave_halt_file(const FaultSite& site) {
  std::ofstream(site.run_folder / ".HALT") << "run: 20250828T101500Z-0ld0\nanomaly: nan_loss\nstep: 1\n";
}

void drift(nsa::Config& config) {
  config.train.gradient_checkpointing = !config.train.gradient_checkpointing;
  config.train.batch_size *= 2;
}

// Process-level faults strike inside the window op at one length that a single case of s_sweep visits, so that the run
// goes on after it: l' + 1 tokens.
bool struck(const Call& call) { return call.B == 1 && call.S == call.geometry.l_sel + 1; }
template <typename Deed>
std::function<void(const FaultSite&)> on_struck_call(const std::shared_ptr<Seams>& seams, Deed deed) {
  return on_ops(seams, [deed](Ops ops, const Call& call) {
    if (struck(call)) deed();
    return ops;
  });
}

}  // namespace

namespace {

// The first catalogue: must all be found, as README.md's table says.
std::vector<Planted> reported_faults(const std::shared_ptr<Seams>& seams) {
  const auto on_model = [&](void (*change)(nsa::LanguageModelImpl&)) {
    return [seams, change](const FaultSite&) { seams->model.push_back(change); };
  };
  const auto on_configuration = [&](void (*change)(nsa::Config&)) {
    return [seams, change](const FaultSite&) { seams->configuration.push_back(change); };
  };
  std::vector<Planted> all;
  const auto add = [&](const char* group, const char* name, const char* what, std::string_view code,
                       const char* found_by, std::function<void(const FaultSite&)> plant) {
    all.push_back({{name, what, {std::string(code)}, std::move(plant)}, group, found_by, /*must_catch=*/true});
  };
  add("init", "zero-gate-init", "the gate's last layer is zero in every block", codes::kGateZeroInit, "init_stats",
      on_model(zero_gate));
  add("flags", "flag-ignored", "every ops table is assembled as if no NSA_* variable were set", codes::kFlagIgnored,
      "flag_matrix", on_ops(seams, ignore_flags));
  add("autograd", "inplace-view-write", "the window op writes into a view of its values after autograd saved them",
      codes::kInplaceWrite, "autograd", on_ops(seams, write_in_place));
  add("anomalies", "nan-at-block-boundary",
      "the selected branch's last row is NaN when the last 768-token tile holds 512 tokens", codes::kLengthPattern,
      "s_sweep", on_ops(seams, nan_at_boundary));
  add("anomalies", "empty-row-nan", "rows that see no compressed block are NaN instead of 0", codes::kEmptyRowNan,
      "s_sweep", on_ops(seams, nan_in_empty_rows));
  add("kernels", "future-leak", "the window reads the value of the token after each key", codes::kFutureLeak, "parity",
      on_ops(seams, leak_future));
  add("autograd", "detached-compressed-keys", "the compressed branch's keys are cut from the graph",
      codes::kCompressedKeysDetached, "autograd", on_ops(seams, detach_compressed_keys));
  add("kernels", "uninitialised-cu-seqlens", "the window's cu_seqlens are allocated and never filled",
      codes::kCuSeqlens, "forward", on_ops(seams, leave_cu_seqlens_unfilled));
  add("throughput", "kv-expand-slow", "the window copies K and V to every query head and loops over rows on the host",
      codes::kExpandedKv, "throughput", on_ops(seams, expand_keys_and_values));
  add("environment", "stale-halt", "a .HALT file of an earlier run lies in the run's folder", codes::kStaleHalt,
      "preflight", leave_halt_file);
  add("environment", "config-drift", "the configuration in use differs from the planned one in two keys",
      codes::kConfigDrift, "preflight", on_configuration(drift));
  add("training", "nan-gradient-step", "one parameter's gradient is NaN in the third backward pass of a model",
      codes::kNonFiniteGradientStep, "training", on_model(poison_third_gradient));
  add("harness", "worker-crash", "the worker dies by SIGSEGV in the middle of a case", harness::codes::kCrash,
      "s_sweep", on_struck_call(seams, [] { (void)std::raise(SIGSEGV); }));
  add("harness", "worker-hang", "the worker waits for ever in the middle of a case", harness::codes::kHang, "s_sweep",
      on_struck_call(seams, [] { std::this_thread::sleep_for(std::chrono::hours(24)); }));
  add("harness", "worker-exit-zero", "the worker leaves with exit status 0 in the middle of a case",
      harness::codes::kVanished, "s_sweep", on_struck_call(seams, [] { std::_Exit(0); }));
  return all;
}

}  // namespace

std::vector<Planted> catalogue(const std::shared_ptr<Seams>& seams) {
  std::vector<Planted> all;
  for (auto* part : {reported_faults, attend_faults, operation_mutants, selection_mutants, model_mutants,
                     decoding_mutants, cost_mutants, process_mutants, deployment_mutants, rank_mutants, source_mutants})
    for (Planted& fault : part(seams)) all.push_back(std::move(fault));
  // Processes that a case starts of the program plant the same.
  for (Planted& fault : all)
    fault.plant = [seams, name = fault.name, plant = std::move(fault.plant)](const FaultSite& site) {
      seams->names.push_back(name);
      plant(site);
    };
  return all;
}

std::vector<harness::Fault> faults(std::shared_ptr<Seams> seams) {
  const std::vector<Planted> all = catalogue(seams);
  return {all.begin(), all.end()};
}

}  // namespace suites
