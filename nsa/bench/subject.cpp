#include "nsa/bench/subject.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "nsa/bench/peers.hpp"

namespace nsa::bench {

namespace {

constexpr const char* kWhole = "nsa";
constexpr const char* kWithoutWindow = "nsa_no_window";

bool in_flash(Op op) { return op == Op::attend_compressed || op == Op::attend_window; }

// What flash does not have is sdpa's in its table.
std::string op_refusal(Backend backend, const Call& call, Op op) {
  return backend == Backend::flash && !in_flash(op) ? "" : nsa::refusal(backend, call, op);
}

}  // namespace

std::span<const Subject> subjects() {
  using enum Op;
  // The parts, not `attend` over them: each has a roof of its own.
  static const std::vector<Op> six = {compress, attend_compressed, select, attend_selected, attend_window, combine};
  static const std::array all = {
      Subject{"compressed", {compress, attend_compressed}, "compressed branch (pool + attention)"},
      Subject{.name = "select", .ops = {select}, .peer = "block scores + top-n", .differentiable = false},
      Subject{.name = "selected", .ops = {attend_selected}, .peer = "selected branch", .chooses = true},
      Subject{"window", {attend_window}, "window branch (w=512)"},
      Subject{"combine", {combine}, ""},
      Subject{"attend", {kAttendParts.begin(), kAttendParts.end()}, ""},
      Subject{.name = kWhole, .ops = six, .peer = "full NSA", .whole = true},
      Subject{.name = kWithoutWindow,
              .ops = {compress, attend_compressed, select, attend_selected, combine},
              .peer = "full NSA",
              .whole = true},
      // As many as leave nothing of the first one's caches in L2 when the last one ends.
      Subject{.name = "decode", .ops = {attend}, .peer = "", .differentiable = false, .steps = 16},
  };
  return all;
}

bool applies(const Subject& subject, const std::string& config) {
  if (config == "d") return subject.chooses;
  return subject.name != kWithoutWindow || config == "b";
}

std::string peer_of(const Subject& subject, const std::string& config) {
  return subject.name == kWhole && config == "b" ? "" : subject.peer;
}

Work work(const Subject& subject, const Problem& problem, Mode mode) {
  if (subject.steps > 0) return step_work(problem);
  Work sum;
  for (const Op op : subject.ops) {
    const Work one = work(op, problem, mode);
    sum.flops += one.flops;
    sum.bytes += one.bytes;
  }
  return sum;
}

double roof_seconds(const Subject& subject, const Problem& problem, Mode mode, const Peaks& peaks) {
  if (subject.steps > 0) return roof_seconds(step_work(problem), peaks);
  double sum = 0;
  for (const Op op : subject.ops) {
    // The passes one by one: one may be bound by memory and the other not.
    const Work forward = work(op, problem, Mode::fwd), all = work(op, problem, mode);
    sum +=
        roof_seconds(forward, peaks) + roof_seconds(Work{all.flops - forward.flops, all.bytes - forward.bytes}, peaks);
  }
  return sum;
}

std::string refusal(const Subject& subject, Backend backend, const Problem& p, Mode mode, Capability capability) {
  const Call call{.S = p.S,
                  .Hq = p.Hq,
                  .G = p.G,
                  .Dk = p.Dk,
                  .Dv = p.Dv,
                  .geometry = p.geometry,
                  .precision = Precision::bf16,
                  .cuda = true,
                  .cuda_major = capability.major,
                  .cuda_minor = capability.minor,
                  .training = mode == Mode::fwd_bwd};
  if (subject.steps > 0 && backend != Backend::cuda && backend != Backend::sdpa)
    return fmt::format("{} has no {} of its own, see cuda and, by ATen's functions, sdpa", to_string(backend),
                       subject.name);
  if (backend == Backend::flash && std::none_of(subject.ops.begin(), subject.ops.end(), in_flash))
    return fmt::format("flash has no {} of its own, see sdpa", subject.name);
  for (const Op op : subject.ops)
    if (const auto reason = op_refusal(backend, call, op); !reason.empty())
      return fmt::format("{}: {}", to_string(op), reason);
  return "";
}

}  // namespace nsa::bench
