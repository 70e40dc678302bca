#include "suites/faults/attend.hpp"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <fmt/format.h>

#include <limits>

#include "suites/codes.hpp"

namespace suites {

namespace {

using nsa::AttendArgs;
using Change = std::function<at::Tensor(const at::Tensor&)>;

struct Wrong {
  std::string name, description;
  std::string_view code;
  std::vector<std::int64_t> lengths;  // where it strikes; empty: everywhere
  at::Tensor AttendArgs::*gradient_of = nullptr;
  at::Tensor nsa::Compressed::*gradient_of_block = nullptr;
  Change change;          // of that gradient; of the output where neither is named
  bool captured = false;  // strikes only while a CUDA graph is captured, and so in its replays alone
};

Change times(double factor) {
  return [factor](const at::Tensor& t) { return t * factor; };
}
// In one head (or group) only. [B,S,H,D]
Change times_in_head(std::int64_t head, double factor) {
  return [=](const at::Tensor& t) {
    const at::Tensor here =
        at::arange(t.size(2), t.options().dtype(at::kLong)).eq((head + t.size(2)) % t.size(2)).view({1, 1, -1, 1});
    return at::where(here, t * factor, t);
  };
}
Change nan_in_row(std::int64_t row) {
  return [=](const at::Tensor& t) {
    const at::Tensor here =
        at::arange(t.size(1), t.options().dtype(at::kLong)).eq((row + t.size(1)) % t.size(1)).view({1, -1, 1, 1});
    return at::where(here, at::full({}, std::numeric_limits<double>::quiet_NaN(), t.options()), t);
  };
}

// The same tensor, whose gradient is changed on its way back; other uses of it keep theirs.
at::Tensor with_gradient(const at::Tensor& t, const Change& change) {
  if (!t.defined() || !t.requires_grad()) return t;
  const at::Tensor own = t.alias();
  own.register_hook([change](const at::Tensor& gradient) { return change(gradient); });
  return own;
}

nsa::Ops with(const Wrong& wrong, nsa::Ops ops) {
  ops.replace(&nsa::Ops::attend, [wrong, inner = ops.attend](AttendArgs args) {
    const std::int64_t S = args.q.size(1);
    const bool here =
        wrong.lengths.empty() || std::find(wrong.lengths.begin(), wrong.lengths.end(), S) != wrong.lengths.end();
    const bool now = !wrong.captured || (args.q.is_cuda() && c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
                                                                 c10::cuda::CaptureStatus::None);
    if (!here || !now) return inner(args);
    if (wrong.gradient_of) args.*wrong.gradient_of = with_gradient(args.*wrong.gradient_of, wrong.change);
    if (wrong.gradient_of_block)
      args.kv.*wrong.gradient_of_block = with_gradient(args.kv.*wrong.gradient_of_block, wrong.change);
    const at::Tensor o = inner(args);
    return wrong.gradient_of || wrong.gradient_of_block ? o : wrong.change(o);
  });
  return ops;
}

std::vector<Wrong> all() {
  using A = AttendArgs;
  using C = nsa::Compressed;
  const auto output = codes::kOutputBudget, gradient = codes::kGradientBudget;
  return {
      {"attend-nan-at-512",
       "attention's last row is NaN at 512 and 1024 tokens",
       codes::kLengthPattern,
       {512, 1024},
       nullptr,
       nullptr,
       nan_in_row(-1)},
      {"attend-dq-nan-at-512",
       "attention's dQ holds a NaN at 512 and 1024 tokens",
       codes::kNonFiniteBackward,
       {512, 1024},
       &A::q,
       nullptr,
       nan_in_row(7)},
      {"attend-dq-off", "attention's dQ is 2 % too large", gradient, {}, &A::q, nullptr, times(1.02)},
      {"attend-dv-sel-half-at-512",
       "the selected branch's dV is half of what it must be at 512 tokens",
       gradient,
       {512},
       &A::v_sel,
       nullptr,
       times(0.5)},
      {"attend-off-at-2048",
       "attention is 2 % too large at 2048 tokens",
       output,
       {2048},
       nullptr,
       nullptr,
       times(1.02)},
      {"attend-off", "attention is 2 % too large", output, {}, nullptr, nullptr, times(1.02)},
      {"attend-dk-cmp-off", "the compressed branch's dK is 10 % too large", gradient, {}, nullptr, &C::k, times(1.1)},
      {"attend-dk-win-off", "the window's dK is 3 % too small", gradient, {}, &A::k_win, nullptr, times(0.97)},
      {"attend-dv-win-lost-at-1024",
       "the window's dV of one group is lost at 1024 tokens",
       gradient,
       {1024},
       &A::v_win,
       nullptr,
       times_in_head(-1, 0)},
      {"attend-dgates-off", "the gates' gradient is 5 % too large", gradient, {}, &A::gates, nullptr, times(1.05)},
      {"attend-dk-sel-group-off",
       "the selected branch's dK of one group is 3 % too large",
       gradient,
       {},
       &A::k_sel,
       nullptr,
       times_in_head(0, 1.03)},
      {"attend-head-off-at-128",
       "one head of attention is 2 % too small at 128 tokens",
       output,
       {128},
       nullptr,
       nullptr,
       times_in_head(1, 0.98)},
      {"attend-dv-cmp-nan-at-2048",
       "the compressed branch's dV holds a NaN at 2048 tokens",
       codes::kNonFiniteBackward,
       {2048},
       nullptr,
       &C::v,
       nan_in_row(0)},
      {"attend-dq-head-off-at-1024",
       "dQ of one head is 4 % too large at 1024 tokens",
       gradient,
       {1024},
       &A::q,
       nullptr,
       times_in_head(3, 1.04)},
      {"captured-off",
       "attention is 2 % too large in a captured step alone",
       codes::kCapturedStep,
       {},
       nullptr,
       nullptr,
       times(1.02),
       true},
      {"captured-nan",
       "attention's first row is NaN in a captured step alone",
       codes::kNonFiniteLoss,
       {},
       nullptr,
       nullptr,
       nan_in_row(0),
       true},
      {"captured-dk-cmp-off",
       "the compressed branch's dK is 3 % too large in a captured step alone",
       codes::kCapturedStep,
       {},
       nullptr,
       &C::k,
       times(1.03),
       true},
      {"captured-dv-sel-group-lost",
       "the selected branch's dV of one group is lost in a captured step alone",
       codes::kCapturedStep,
       {},
       &A::v_sel,
       nullptr,
       times_in_head(0, 0),
       true},
  };
}

// Found by one case each, at the length that the fault strikes at (suites/parity/tests plants them all in one process);
// NaN by the sweep. No case of smoke takes 2048 tokens on the CPU, and no step is captured there.
std::string found_by(const Wrong& wrong) {
  if (wrong.captured) return "training/captured_step";
  if (wrong.name.find("nan-at") != std::string::npos) return "s_sweep";
  return fmt::format("parity/attention[S={}]", wrong.lengths.empty() ? 128 : wrong.lengths.front());
}
bool needs_gpu(const Wrong& wrong) { return wrong.captured || wrong.name.ends_with("-at-2048"); }

}  // namespace

std::vector<Planted> attend_faults(const std::shared_ptr<Seams>& seams) {
  std::vector<Planted> faults;
  for (const Wrong& wrong : all()) {
    const auto plant = [seams, wrong](const harness::FaultSite&) {
      seams->ops.push_back([wrong](nsa::Ops ops, const nsa::Call&) { return with(wrong, std::move(ops)); });
    };
    faults.push_back({{wrong.name, wrong.description, {std::string(wrong.code)}, plant},
                      wrong.captured ? "training" : "attention",
                      found_by(wrong),
                      /*must_catch=*/true,
                      needs_gpu(wrong)});
  }
  return faults;
}

}  // namespace suites
