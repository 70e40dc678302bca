#include "suites/oracle/backends.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "harness/context.hpp"
#include "suites/implementation/description.hpp"

namespace suites::oracle {

namespace {

implementation::Client& judged(const Subject& subject) {
  const auto client = subject.implementation();
  if (!client) throw std::logic_error("no implementation is judged by this subject");
  return *client;
}

// What is not claimed is nobody's fault, and no case for our own functions either.
void require_claim(const Subject& subject, const OpShape& shape, nsa::Op op, const nsa::Call& call) {
  const implementation::Description& d = judged(subject).describe();
  if (shape.attention && !d.computes_function("attention") && !d.computes_function("attend"))
    throw harness::Skipped{"not_applicable", fmt::format("{} computes no attention as a whole", d.name)};
  std::string why = call.phi == nsa::Phi::avg || op != nsa::Op::compress ? "" : "compression by weights is ours";
  if (why.empty()) why = implementation::refusal(d, implementation::wanted(op, call));
  if (!why.empty()) throw harness::Skipped{"not_applicable", why};
}

// Learned compression is sdpa's by every way but the reference.
bool learned(const OpShape& shape, nsa::Op op) { return op == nsa::Op::compress && shape.phi == nsa::Phi::mlp; }

}  // namespace

std::string refusal(const Way& way, const OpShape& shape, nsa::Op op, at::ScalarType dtype, at::Device device) {
  const nsa::Backend backend = way.parts.at(op).backend;
  // shape_for keeps to FlashAttention-2's limits: that it refuses a call is the suite's mistake, which ops_of tells.
  if (backend == nsa::Backend::flash || learned(shape, op)) return "";
  return nsa::refusal(backend, call_of(shape, dtype, device, way.gradients), op);
}

nsa::Ops ops_of(const Subject& subject, const Way& way, const OpShape& shape, nsa::Op op, at::ScalarType dtype,
                at::Device device) {
  if (const std::string reason = refusal(way, shape, op, dtype, device); !reason.empty())
    throw harness::Skipped{"unsupported",
                           fmt::format("{} does not serve {}: {}", way.name, nsa::to_string(op), reason)};
  const nsa::Call call = call_of(shape, dtype, device, gives_gradients(subject, way));
  const nsa::EffectiveFlags flags = way.flags();
  if (way.name == kImplementation) {
    require_claim(subject, shape, op, call);
    return subject.ops(flags, call);
  }
  const nsa::Choice choice = nsa::route(flags, call)[op];
  const bool by_sdpa = learned(shape, op) && way.name != "reference";
  if (const Part wanted = by_sdpa ? Part{nsa::Backend::sdpa, nsa::RouteVariant::none} : way.parts.at(op);
      !wanted.holds(choice))
    throw std::logic_error(fmt::format("{} by {} would run as {}, not as {}: {}", nsa::to_string(op), way.name,
                                       nsa::to_string(choice), to_string(wanted), choice.why));
  return subject.ops(flags, call);
}

OpShape shape_for(const Subject& subject, const Way& way, OpShape shape) {
  if (way.needs_cuda) shape.Dk = shape.Dv = 64;
  if (way.name != kImplementation) return shape;
  const implementation::Description& d = judged(subject).describe();
  const implementation::Sizes fitted =
      d.limits.fitted({shape.B, shape.S, shape.Hq, shape.G, shape.Dk, shape.Dv, shape.geometry});
  const nsa::Geometry &own = shape.geometry, &g = fitted.geometry;
  const bool another = own.l != g.l || own.d != g.d || own.l_sel != g.l_sel || own.w != g.w;
  shape.geometry = g;
  shape.own_block = d.own_block;
  shape.empty_documents = d.empty_documents;
  if (another) shape.S = parity_shape(g).S;
  shape.Hq = fitted.Hq;
  shape.Dk = fitted.Dk;
  shape.Dv = fitted.Dv;
  return shape;
}

bool gives_gradients(const Subject& subject, const Way& way) {
  return way.gradients && (way.name != kImplementation || judged(subject).describe().gradients);
}

}  // namespace suites::oracle
