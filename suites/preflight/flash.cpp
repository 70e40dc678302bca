// FlashAttention-2 proved by calls, not by a version number. The calls go to the backend itself: what is asked here is
// whether library and GPU have the kernels; whether flags lead to them is flag_matrix's question.
#include "nsa/flash/flash.hpp"
#include "base/text.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "harness/compare.hpp"
#include "nsa/call.hpp"
#include "nsa/reference/reference.hpp"
#include "nsa/route.hpp"
#include "suites/codes.hpp"
#include "suites/preflight/checks.hpp"
#include "suites/probes/op_trace.hpp"

namespace suites::preflight_checks {

namespace {

constexpr std::int64_t kTokens = 200;

nsa::AttendWindowArgs inputs(const nsa::ModelConfig& model, at::TensorOptions options, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto draw = [&](std::int64_t heads, std::int64_t width) {
    return at::randn({1, kTokens, heads, width}, generator, at::kFloat)
        .to(options.device(), options.dtype().toScalarType());
  };
  nsa::AttendWindowArgs args;
  args.q = draw(model.n_heads, model.d_k);
  args.k = draw(model.n_kv_groups, model.d_k);
  args.v = draw(model.n_kv_groups, model.d_v);
  args.geometry = model.nsa;
  return args;
}

// The same attention in fp32, from the definition.
at::Tensor wanted(nsa::AttendWindowArgs args) {
  args.q = args.q.to(at::kFloat);
  args.k = args.k.to(at::kFloat);
  args.v = args.v.to(at::kFloat);
  return nsa::reference::attend_window(args).o;
}

// "asked for and does not work" is grave only when it was asked for.
reports::Severity severity(const Subject& subject) {
  const nsa::EffectiveFlags flags = subject.flags();
  const bool asked = flags.fa2_all || flags.fa2_win || flags.fa2_cmp;
  return asked ? reports::Severity::degrade : reports::Severity::warn;
}

}  // namespace

void flash_refuses(const Subject& subject, Context& context) {
  const at::NoGradGuard no_grad;
  const nsa::ModelConfig model = subject.config(context).model;
  const nsa::AttendWindowArgs args = inputs(model, at::device(at::kCPU).dtype(at::kFloat), context.seed("inputs"));
  context.phase("flash called on the CPU");
  std::string reason;
  try {
    (void)nsa::flash::attend_window(args, nsa::flash::Entry::dense);
  } catch (const nsa::Unsupported& refusal) {
    reason = refusal.what();
  }
  context.expect("flash.refuses_cpu", reason.find("cpu") != std::string::npos,
                 reason.empty() ? "FlashAttention-2 accepted tensors on the CPU"
                                : "the refusal does not name the device: " + reason,
                 codes::kBadInputAccepted, {{"argument", "q, k, v on the CPU"}, {"refusal", reason}});
  context.fact("flash.refusal", reason);

  context.phase("flags ask for flash on the CPU");
  const nsa::EffectiveFlags flags = nsa::resolve({{"NSA_USE_FA2", "1"}});
  const nsa::Call call = nsa::call_of(model, 1, kTokens, nsa::Precision::fp32, at::kCPU);
  std::string failure;
  try {
    const at::Tensor o = subject.ops(flags, call).attend_window(args).o;
    if (!o.isfinite().all().item<bool>()) failure = "the output is not finite";
  } catch (const std::exception& error) {
    failure = base::first_line(error.what());
  }
  context.expect("flash.next_backend", failure.empty(),
                 "with NSA_USE_FA2=1 on the CPU the window must go to the next backend: " + failure,
                 codes::kFlashUnavailable, {{"error", failure}});
}

void flash_works(const Subject& subject, Context& context, FlashKind kind) {
  const at::NoGradGuard no_grad;
  const nsa::ModelConfig model = subject.config(context).model;
  nsa::AttendWindowArgs args =
      inputs(model, at::device(device_of(context)).dtype(at::kBFloat16), context.seed("inputs"));
  args.geometry.w = kind == FlashKind::dense ? kTokens : 48;
  if (kind == FlashKind::varlen) {  // an empty document and one of one token among others
    args.cu_seqlens = at::tensor({0, 61, 61, 62, static_cast<int>(kTokens)}, at::kInt);
  }
  const auto entry = kind == FlashKind::varlen ? nsa::flash::Entry::varlen : nsa::flash::Entry::dense;
  const auto unavailable = [&](const std::string& why, const Json& evidence) {
    context.finding(codes::kFlashUnavailable, severity(subject), why, evidence);
  };

  const nsa::Call call =
      nsa::call_of(model, 1, kTokens, nsa::Precision::bf16, device_of(context), false, args.cu_seqlens.has_value());
  context.fact("flash.capability", nsa::flash_refusal(call, nsa::Op::attend_window));
  context.phase("call");
  at::Tensor o;
  probes::OpCounts ran;
  try {
    const probes::OpTrace trace;
    o = nsa::flash::attend_window(args, entry).o.to(at::kFloat);
    ran = trace.all();
  } catch (const std::exception& error) {
    return unavailable(fmt::format("the call failed: {}", base::first_line(error.what())), {{"error", error.what()}});
  }
  const auto flash_op = ran.lower_bound("aten::_flash_attention_forward");  // whichever overload
  if (flash_op == ran.end() || !flash_op->first.starts_with("aten::_flash_attention_forward")) {
    return unavailable("the call returned without running aten::_flash_attention_forward", Json(ran));
  }
  context.phase("compare with fp32");
  const double error = (o - wanted(args)).abs().max().item<double>();
  // Outputs are means of values of size 1, in rows of few keys up to 4: half a unit in the last place of bf16 is 2^-7
  // there, and probabilities rounded before they meet V add as much again. A wrong mask or scale is off by about 1.
  constexpr double kBound = 1.0 / 32;
  context.metric("flash.max_error", error, "1");
  if (!harness::at_most(error, kBound)) {
    unavailable(fmt::format("the result is {} away from fp32, allowed is {}", error, kBound),
                {{"max_error", reports::number(error)}, {"bound", kBound}});
  }
}

}  // namespace suites::preflight_checks
