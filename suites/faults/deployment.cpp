// What the reported days had besides wrong arithmetic: a fix that was not deployed, somebody else on the GPU, one step
// that never ends, an address that is not the program's, a kernel that was asked for and not taken, rows without keys.
#include <ATen/ATen.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "harness/codes.hpp"
#include "suites/codes.hpp"
#include "suites/faults/mutants.hpp"
#include "suites/faults/wait.hpp"
#include "suites/faults/wrapping.hpp"

namespace suites {

namespace deployment_fault {

namespace fs = std::filesystem;
using at::Tensor;
using harness::FaultSite;
using nsa::Ops;

// The sources beside the program are said to be others than those that it was built from.
void sources_of_another_commit(harness::Json& planned) { planned["build"]["source_hash"] = "00000000deadc0de"; }

// Who holds memory of the GPU: this process, so that the numbers are known to mean something, and one that is nobody's.
void somebody_on_the_gpu(probes::GpuCensus& census) {
  constexpr std::uint64_t kHeld = std::uint64_t{10} << 30;
  const std::int64_t nobody = std::int64_t{1} << 30;  // above the highest pid of any system
  census.why_not.clear();
  census.processes = {{getpid(), "nsa-validate", std::uint64_t{1} << 28}, {nobody, "python", kHeld, "python train.py"}};
}

// Once a run: the first model that has been updated five times does not come back from its next backward pass. Updates
// are counted by the weight's values, so batches that are accumulated count as one.
constexpr int kUpdatesBefore = 5;
struct Updates {
  Tensor last;
  int seen = 0;
};
void never_come_back_from_step_5(const FaultSite& site, nsa::LanguageModelImpl& model) {
  const fs::path done = site.run_folder / ".planted-hang";
  const auto updates = std::make_shared<Updates>();
  model.head->weight.register_hook([done, updates, weight = model.head->weight.detach()](const Tensor& gradient) {
    if (updates->last.defined() && at::equal(updates->last, weight)) return gradient;
    if (updates->last.defined()) ++updates->seen;
    updates->last = weight.clone();
    if (updates->seen == kUpdatesBefore && !fs::exists(done)) {
      std::ofstream(done) << "a planted hang has struck in this run\n";
      std::this_thread::sleep_for(std::chrono::hours(24));
    }
    return gradient;
  });
}

// A kernel of ATen's reads from an address that belongs to nobody, in training at 512 tokens alone.
void read_from_nowhere(const Tensor& like) {
  constexpr std::int64_t kValues = 1 << 20;
  const Tensor nowhere =
      at::for_blob(reinterpret_cast<void*>(std::uintptr_t{1} << 12), {kValues})  // NOLINT: that is the fault
          .options(like.options().dtype(at::kFloat))
          .target_device(like.device())
          .make_tensor();
  (void)nowhere.sum();
}
Ops illegal_access(Ops ops, const nsa::Call& call) {
  if (!call.training || call.S != 512) return ops;
  return before(&Ops::attend_window, [](nsa::AttendWindowArgs& a) {
    if (a.q.is_cuda()) read_from_nowhere(a.q);
  })(std::move(ops), call);
}

// Window and compressed branch by sdpa wherever FlashAttention-2 would serve them, and the record keeps its
// word for it.
Ops without_flash(Ops ops, const nsa::Call& call) {
  const Ops sdpa = nsa::backend_ops(nsa::Backend::sdpa);
  if (nsa::flash_refusal(call, nsa::Op::attend_window).empty()) ops.replace(&Ops::attend_window, sdpa.attend_window);
  if (nsa::flash_refusal(call, nsa::Op::attend_compressed).empty())
    ops.replace(&Ops::attend_compressed, sdpa.attend_compressed);
  return ops;
}

// FlashAttention-2 wherever it can serve, also where it was switched off.
Ops with_flash(Ops ops, const nsa::Call& call) {
  const Ops flash = nsa::backend_ops(nsa::Backend::flash);
  if (nsa::flash_refusal(call, nsa::Op::attend_window).empty()) ops.replace(&Ops::attend_window, flash.attend_window);
  if (nsa::flash_refusal(call, nsa::Op::attend_compressed).empty())
    ops.replace(&Ops::attend_compressed, flash.attend_compressed);
  return ops;
}

// The last row loses all its blocks, and the guard for rows without keys is gone: softmax over all -inf.
Ops rows_without_blocks(Ops ops, const nsa::Call& call) {
  const auto last = [](const Tensor& like, std::int64_t S) {
    return at::arange(S, like.options().dtype(at::kLong)).eq(S - 1).view({1, S, 1, 1});
  };
  ops = after(&Ops::select, [last](Tensor& blocks, const nsa::SelectArgs&) {
    blocks = at::where(last(blocks, blocks.size(1)), at::full({}, -1, blocks.options()), blocks).contiguous();
  })(std::move(ops), call);
  return after(&Ops::attend_selected, [](nsa::Attended& out, const nsa::AttendSelectedArgs& a) {
    const std::int64_t h = out.o.size(2) / a.blocks.size(2);
    const Tensor empty = a.blocks.lt(0).all(-1).repeat_interleave(h, 2).unsqueeze(-1);
    out.o = at::where(empty, at::full({}, std::numeric_limits<double>::quiet_NaN(), out.o.options()), out.o);
  })(std::move(ops), call);
}

// 1.8 s more for a pass where the last 768-token tile is 512 long: 512 and 2048 tokens. In the window of one layer, so
// that it is the same time whatever the model's depth.
void slow_at_boundary(nsa::LanguageModelImpl& model) {
  const Wait wait({.first = 1'800'000'000, .most = 1'800'000'000, .every = model.layers->size()});
  model.runtime->ops = [inner = model.runtime->ops, wait](const nsa::Call& call) {
    Ops ops = inner(call);
    if (call.S % 768 != 512) return ops;
    return before(&Ops::attend_window, [wait](nsa::AttendWindowArgs& a) { wait(a.q); })(std::move(ops), call);
  };
}

}  // namespace deployment_fault

std::vector<Planted> deployment_mutants(const std::shared_ptr<Seams>& seams) {
  namespace d = deployment_fault;
  namespace x = harness::codes;
  std::vector<Planted> all;
  const auto add = [&](const char* group, const char* name, const char* what, std::vector<std::string> codes,
                       const char* found_by, std::function<void(const d::FaultSite&)> plant, bool needs_gpu = false) {
    Planted fault{{name, what, std::move(codes), std::move(plant)}, group, found_by};
    fault.needs_gpu = needs_gpu;
    all.push_back(std::move(fault));
  };
  const auto of = [](std::string_view code) { return std::string(code); };
  add("environment", "fix-not-deployed", "the program was built from other sources than those beside it",
      {of(codes::kBuildStale), of(codes::kFixMissing)}, "preflight",
      [seams](const d::FaultSite&) { seams->planned.push_back(d::sources_of_another_commit); });
  add(
      "environment", "foreign-gpu-process", "another process holds 10 GiB of the GPU", {of(codes::kForeignProcess)},
      "preflight", [seams](const d::FaultSite&) { seams->gpu_processes.push_back(d::somebody_on_the_gpu); },
      /*needs_gpu=*/true);
  add("training", "hang-at-step-5", "a training run does not come back from its step 5, once", {of(x::kHang)},
      "training/real_text", [seams](const d::FaultSite& site) {
        seams->model.push_back([site](nsa::LanguageModelImpl& model) { d::never_come_back_from_step_5(site, model); });
      });
  add("kernels", "illegal-access", "a kernel reads from an address that is nobody's, in training at 512 tokens",
      {of(x::kException), of(x::kUnhealthy), of(x::kCrash)}, "s_sweep", plant_in_ops(seams, d::illegal_access),
      /*needs_gpu=*/true);
  add("flags", "flash-not-taken", "sdpa computes what FlashAttention-2 was asked for, and nobody says so",
      {of(codes::kFlagIgnored), of(codes::kRouteRecord), of(codes::kFlagNotObeyed)}, "flag_matrix",
      plant_in_ops(seams, d::without_flash), /*needs_gpu=*/true);
  add("flags", "flash-not-switched-off", "FlashAttention-2 computes what it can serve, also where it was switched off",
      {of(codes::kFlagIgnored), of(codes::kRouteRecord), of(codes::kFlagNotObeyed)}, "flag_matrix",
      plant_in_ops(seams, d::with_flash), /*needs_gpu=*/true);
  add("anomalies", "selected-row-without-blocks",
      "the last row has lost all its blocks, and the selected branch gives NaN for it",
      {of(codes::kEmptyRowNan), of(codes::kNonFiniteForward)}, "s_sweep", plant_in_ops(seams, d::rows_without_blocks));
  add("throughput", "slow-at-block-boundary", "a pass waits for 1.8 s at 512 and 2048 tokens",
      {of(codes::kShapeSlow), of(codes::kTimeLaw)}, "throughput/shapes",
      [seams](const d::FaultSite&) { seams->model.push_back(d::slow_at_boundary); });
  return all;
}

}  // namespace suites
