#include "suites/oracle/backends.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "harness/context.hpp"
#include "nsa/cuda/features.hpp"

namespace suites::oracle {

namespace {

// Learned compression is sdpa's by every way but the reference.
bool learned(const OpShape& shape, nsa::Op op) { return op == nsa::Op::compress && shape.phi == nsa::Phi::mlp; }

}  // namespace

std::string refusal(const Way& way, const OpShape& shape, nsa::Op op, at::ScalarType dtype, at::Device device) {
  if (way.name != "cuda" || learned(shape, op)) return "";
  return nsa::cuda_refusal(call_of(shape, dtype, device, way.gradients), op);
}

nsa::Ops ops_of(const Subject& subject, const Way& way, const OpShape& shape, nsa::Op op, at::ScalarType dtype,
                at::Device device) {
  if (const std::string reason = refusal(way, shape, op, dtype, device); !reason.empty())
    throw harness::Skipped{"unsupported", fmt::format("cuda does not serve {}: {}", nsa::to_string(op), reason)};
  const nsa::Call call = call_of(shape, dtype, device, way.gradients);
  const nsa::EffectiveFlags flags = way.flags();
  const nsa::Choice choice = nsa::route(flags, call)[op];
  const bool by_sdpa = learned(shape, op) && way.name != "reference";
  if (const Part wanted = by_sdpa ? Part{nsa::Backend::sdpa, ""} : way.parts.at(op); !wanted.holds(choice))
    throw std::logic_error(fmt::format("{} by {} would run as {}, not as {}: {}", nsa::to_string(op), way.name,
                                       nsa::to_string(choice), to_string(wanted), choice.why));
  return subject.ops(flags, call);
}

OpShape shape_for(const Way& way, OpShape shape) {
  if (way.needs_cuda) shape.Dk = shape.Dv = 64;
  return shape;
}

}  // namespace suites::oracle
