// Standard: the seven functions, each in every way of computing it, over hostile input.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "suites/probes/autograd_errors.hpp"
#include "suites/probes/lengths.hpp"
#include "suites/s_sweep/cases.hpp"
#include "suites/s_sweep/op_point.hpp"
#include "suites/s_sweep/sweep_log.hpp"

namespace suites::s_sweep_cases {

namespace {

using harness::Case;
using harness::Context;
using nsa::Op;

// One way of computing one function.
struct Computation {
  std::string way;
  Op op;
  nsa::Phi phi = nsa::Phi::avg;

  [[nodiscard]] std::string function() const {
    return std::string(nsa::to_string(op)) + (phi == nsa::Phi::mlp ? "_mlp" : "");
  }
  [[nodiscard]] std::string name() const { return fmt::format("{}:{}", way, function()); }
};

const std::vector<Computation>& computations() {
  static const std::vector<Computation> all = [] {
    std::vector<Computation> list;
    for (const Way& way : ways()) {
      for (const Op op : way.ops) {
        list.push_back({way.name, op});
        // Learned compression is sdpa's by every other way.
        if (op == Op::compress && !way.needs_cuda) list.push_back({way.name, op, nsa::Phi::mlp});
      }
    }
    return list;
  }();
  return all;
}

const std::vector<at::ScalarType>& dtypes() {
  static const std::vector<at::ScalarType> all = {at::kFloat, at::kBFloat16, at::kHalf};
  return all;
}
std::string dtype_name(at::ScalarType dtype) {
  return dtype == at::kFloat ? "fp32" : dtype == at::kBFloat16 ? "bf16" : "fp16";
}

// The axes of op_design, in order.
enum OpAxis : std::size_t { kLength, kComputation, kContent, kScale, kDtype, kLayout, kWidths };

bool needs_cuda(const Computation& c) { return way_named(c.way).needs_cuda; }
std::int64_t fewest_tokens(const Computation& c, const nsa::Geometry& geometry) {
  const auto fewest = way_named(c.way).fewest_tokens;
  return fewest ? fewest(geometry) : 1;
}
bool shares_tiles(const Computation& c) {
  return way_named(c.way).shares_tiles && c.op != Op::compress && c.op != Op::select && c.op != Op::combine;
}

// What cannot stand together (op_exclusions says it in words). Lengths, as standard_lengths gives them.
class Allowed {
 public:
  Allowed(const nsa::Geometry& geometry, std::vector<std::int64_t> lengths)
      : geometry_(geometry), lengths_(std::move(lengths)) {}

  bool operator()(const Pair& p) const {
    const auto both = [&](std::size_t x, std::size_t y) { return p.first == x && p.second == y; };
    if (both(kContent, kLayout)) return kContents[p.a] != Content::poison || kLayouts[p.b] != Layout::single;
    if (both(kLength, kComputation)) return lengths_[p.a] >= fewest_tokens(computations()[p.b], geometry_);
    if (p.first != kComputation) return true;
    const Computation& c = computations()[p.a];
    if (p.second == kContent)
      return suits(kContents[p.b], c.op) && (kContents[p.b] != Content::poison || !shares_tiles(c));
    // combine knows no documents.
    if (p.second == kLayout) return kLayouts[p.b] != Layout::packed || (c.op != Op::combine && way_named(c.way).packed);
    if (p.second == kDtype) return !needs_cuda(c) || dtypes()[p.b] != at::kFloat;
    return p.second != kWidths || !needs_cuda(c) || p.b == 0;
  }

 private:
  nsa::Geometry geometry_;
  std::vector<std::int64_t> lengths_;
};

OpPoint op_point(const Design& design, const Point& point, const nsa::Geometry& geometry,
                 const std::vector<double>& scales) {
  const Computation& c = computations()[point[kComputation]];
  OpPoint op{c.way, {}};
  op.input.op = c.op;
  op.input.phi = c.phi;
  op.input.geometry = geometry;
  op.input.S = std::stoll(design.axes[kLength].values[point[kLength]]);
  op.input.dtype = dtypes()[point[kDtype]];
  op.input.scale = scales[point[kScale]];
  op.input.content = kContents[point[kContent]];
  op.input.layout = kLayouts[point[kLayout]];
  // FlashAttention-2 and our own kernels want one width; elsewhere two small ones, so that nothing fits by accident.
  op.input.Dk = needs_cuda(c) ? 64 : 16;
  op.input.Dv = point[kWidths] == 0 ? op.input.Dk : 24;
  return op;
}

void sweep_ops(Context& context, const Subject& subject, std::size_t computation) {
  const nsa::Geometry geometry = subject.config(context).model.nsa;
  const std::vector<double> scales = context.settings().reals("s_sweep.standard_scales");
  const Design design = op_design(geometry, scales);
  SweepLog log(context, design);
  int number = 0;
  for (const Point& point : design.points) {
    ++number;
    if (point[kComputation] != computation) continue;
    log.begin(point);
    const OpPoint op = op_point(design, point, geometry, scales);
    try {
      log.add(point, diagnose_op(subject, op, {device_of(context), context.seed("inputs", number), !log.full()}));
    } catch (const c10::Error& error) {
      probes::report_inplace_write(context, error, design.json(point));
      return;
    }
  }
  log.finish();
}

}  // namespace

Design op_design(const nsa::Geometry& geometry, const std::vector<double>& scales) {
  Axis length{"S", {}}, computation{"computation", {}}, content{"content", {}}, scale{"scale", {}}, dtype{"dtype", {}},
      layout{"layout", {}};
  const std::vector<std::int64_t> lengths = standard_lengths(geometry);
  for (const std::int64_t S : lengths) length.values.push_back(std::to_string(S));
  for (const Computation& c : computations()) computation.values.push_back(c.name());
  for (const Content c : kContents) content.values.emplace_back(to_string(c));
  for (const double s : scales) scale.values.push_back(fmt::format("{:g}", s));
  for (const at::ScalarType d : dtypes()) dtype.values.push_back(dtype_name(d));
  for (const Layout l : kLayouts) layout.values.emplace_back(to_string(l));
  return {{length, computation, content, scale, dtype, layout, {"widths", {"equal", "unequal"}}},
          Allowed(geometry, lengths)};
}

const std::vector<std::string>& op_exclusions() {
  static const std::vector<std::string> all = {
      "FlashAttention-2 with fp32, with two head widths, or below max(16, l) tokens: the route takes another way",
      "our own kernels with fp32 or with these two head widths: the route takes another way",
      "NaN in padding with a single sequence: it has no padding",
      "NaN in padding with our own kernels' attention: it may reach the rows of its tile",
      "combine with a packed batch: it knows no documents",
      "FlashAttention-2's dense entry with a packed batch: that is the varlen entry",
      "contents of keys, logits or values with a function that has none; an overflow without attention"};
  return all;
}

Cases plan_ops(const Plan& plan) {
  Cases cases;
  for (std::size_t i = 0; i < computations().size(); ++i) {
    Case c;
    c.name = "ops";
    c.level = harness::Level::standard;
    c.params.set("backend", computations()[i].way);
    c.params.set("op", computations()[i].function());
    c.needs_cuda = needs_cuda(computations()[i]);
    c.brought_by = {"s_sweep.standard_scales"};
    c.run = [subject = plan.subject, i](Context& context) { sweep_ops(context, subject, i); };
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace suites::s_sweep_cases
