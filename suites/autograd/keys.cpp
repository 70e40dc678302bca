// SENS and PERT key by key: another value at one place moves exactly the rows and heads that may see it, another key no
// row beyond them. This finds a mask that is off by one at either end, heads that read another group's keys, and
// attention to the first key only.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <set>

#include "suites/autograd/cases.hpp"
#include "suites/codes.hpp"
#include "suites/probes/stages.hpp"

namespace suites::autograd_cases {

namespace {

using harness::Context;
using oracle::OpCase;

// Keys and values of one branch, and where they stand among the inputs: `attend` has those of all three.
struct Branch {
  std::string_view name;
  std::size_t key, value;

  [[nodiscard]] bool compressed() const { return name == "cmp"; }
  [[nodiscard]] bool selected() const { return name == "sel"; }
};

std::vector<Branch> branches(const OpCase& c) {
  if (c.op == nsa::Op::attend) return {{"cmp", 1, 2}, {"sel", 3, 4}, {"win", 5, 6}};
  const std::string name = c.branch();
  return {{name == "cmp" ? "cmp" : name == "sel" ? "sel" : "win", 1, 2}};
}

// A place in k and v: a token, or a compressed block.
struct Place {
  std::int64_t index = 0, group = 0;
};

std::vector<Place> places(const OpCase& c, const Branch& branch) {
  const nsa::Geometry& g = c.shape.geometry;
  const std::int64_t count = c.inputs[branch.key].size(1);
  const std::set<std::int64_t> wanted = {0,   1,       2,         g.l - 1,   g.l,       g.l_sel - 1, g.l_sel,  g.w - 1,
                                         g.w, g.w + 1, count / 3, count / 2, count - 3, count - 2,   count - 1};
  std::vector<Place> all;
  for (const std::int64_t index : wanted)
    if (index >= 0 && index < count) all.push_back({index, index % c.shape.G});
  return all;
}

// Which rows may see the place, written from the definition: [B,S] bool.
at::Tensor seeing(const OpCase& c, const Branch& branch, const Place& place) {
  const nsa::Geometry& g = c.shape.geometry;
  const at::Tensor t = at::arange(c.shape.S, at::TensorOptions(at::kLong).device(c.inputs[0].device()));
  const std::int64_t j = place.index;
  if (branch.selected()) return c.blocks.select(2, place.group).eq(j / g.l_sel).any(-1).logical_and(t.ge(j));
  const at::Tensor rows = branch.compressed() ? t.ge(j * g.d + g.l - 1) : t.ge(j).logical_and(t.lt(j + g.w));
  return rows.unsqueeze(0).expand({c.shape.B, c.shape.S});
}

struct Wrong {
  std::string_view code;
  std::string what;
  harness::Json evidence;
};

class KeyProbe {
 public:
  KeyProbe(const OpCase& c, const Branch& branch, const nsa::Ops& ops, std::uint64_t seed)
      : c_(c),
        branch_(branch),
        ops_(ops),
        generator_(at::make_generator<at::CPUGeneratorImpl>(seed)),
        base_(output(c.inputs)) {}

  [[nodiscard]] bool finite() const { return base_.isfinite().all().item<bool>(); }

  // Whether every row and head that may see the value moves and no other one does.
  std::optional<Wrong> value(const Place& place) {
    // Large, so that no weight is too small for bf16 to show it, also beside two other branches.
    const at::Tensor moved = moved_by(branch_.value, place, c_.op == nsa::Op::attend ? 4096 : 64);
    const at::Tensor wanted = wanted_heads(place);
    if (auto beyond = first_beyond(moved, wanted, "value", place)) return beyond;
    const at::Tensor still = wanted.logical_and(moved.logical_not()).nonzero();
    if (still.numel() == 0) return std::nullopt;
    return wrong(codes::kInsensitive, "moves only in part although every row that sees it must", "value", place,
                 still[0]);
  }

  // Whether some row that sees the key moves, and no other one does.
  std::optional<Wrong> key(const Place& place) {
    const at::Tensor moved = moved_by(branch_.key, place, 1);
    if (auto beyond = first_beyond(moved, wanted_heads(place), "key", place)) return beyond;
    const at::Tensor among_others = seeing(c_, branch_, place).logical_and(keys_seen().gt(1));
    if (!among_others.any().item<bool>() || moved.any().item<bool>()) return std::nullopt;
    return wrong(codes::kInsensitive, "does not matter to any row that sees it", "key", place,
                 among_others.nonzero()[0]);
  }

 private:
  const OpCase& c_;
  const Branch branch_;
  const nsa::Ops& ops_;
  at::Generator generator_;
  at::Tensor base_;  // [B,S,Hq,Dv]

  [[nodiscard]] at::Tensor output(const std::vector<at::Tensor>& inputs) const {
    const at::NoGradGuard no_grad;
    return c_.call(ops_, inputs)[0].clone();
  }

  // [B,S,Hq]: where another content of the place, in every row of the batch, changes the output by a bit.
  at::Tensor moved_by(std::size_t input, const Place& place, double scale) {
    std::vector<at::Tensor> inputs = c_.inputs;
    inputs[input] = inputs[input].clone();
    at::Tensor content = inputs[input].select(1, place.index).select(1, place.group);
    content.copy_(at::randn(content.sizes(), generator_, at::TensorOptions(at::kDouble)) * scale);
    return output(inputs).ne(base_).any(-1);
  }

  [[nodiscard]] at::Tensor wanted_heads(const Place& place) const {
    const std::int64_t h = c_.shape.Hq / c_.shape.G;
    at::Tensor wanted = at::zeros({c_.shape.B, c_.shape.S, c_.shape.Hq}, base_.options().dtype(at::kBool));
    wanted.narrow(2, place.group * h, h).copy_(seeing(c_, branch_, place).unsqueeze(2).expand({-1, -1, h}));
    return wanted;
  }

  // [S]: a key that is alone has weight 1 whatever it is.
  [[nodiscard]] at::Tensor keys_seen() const {
    std::vector<std::int64_t> counts;
    for (std::int64_t t = 0; t < c_.shape.S; ++t)
      counts.push_back(branch_.selected() ? t + 1 : probes::allowed_keys(branch_.name, c_.shape.geometry, t));
    return at::tensor(counts, at::kLong).to(base_.device());
  }

  [[nodiscard]] std::optional<Wrong> first_beyond(const at::Tensor& moved, const at::Tensor& wanted, const char* tensor,
                                                  const Place& place) const {
    const at::Tensor beyond = moved.logical_and(wanted.logical_not()).nonzero();
    if (beyond.numel() == 0) return std::nullopt;
    const std::int64_t row = beyond[0][1].item<std::int64_t>();
    const std::int64_t last =
        branch_.compressed() ? place.index * c_.shape.geometry.d + c_.shape.geometry.l - 1 : place.index;
    return wrong(row < last ? codes::kFutureLeak : codes::kForeignKey, "moves a row or a head that must not see it",
                 tensor, place, beyond[0]);
  }

  [[nodiscard]] Wrong wrong(std::string_view code, const char* what, const char* tensor, const Place& place,
                            const at::Tensor& at) const {
    const std::int64_t row = at[1].item<std::int64_t>(), head = at.numel() > 2 ? at[2].item<std::int64_t>() : -1;
    return {code,
            fmt::format("the {} of branch {} at {} {} of group {} {}: row {}{}", tensor, branch_.name,
                        branch_.compressed() ? "block" : "token", place.index, place.group, what, row,
                        head < 0 ? "" : fmt::format(", head {}", head)),
            {{"tensor", tensor},
             {"branch", branch_.name},
             {"place", place.index},
             {"group", place.group},
             {"row", row},
             {"head", head}}};
  }
};

}  // namespace

void keys(Context& context, const Subject& subject, const OpRun& run) {
  const Way& way = way_named(run.way);
  oracle::OpShape shape = shape_for(subject, way, oracle::parity_shape(subject.config(context).model.nsa));
  const at::ScalarType dtype = context.cuda() ? at::kBFloat16 : at::kFloat;
  const OpCase c = make_op_case(run.op, shape, dtype, device_of(context), context.seed("inputs"));
  const nsa::Ops ops = ops_of(subject, way, shape, run.op, dtype, device_of(context));
  harness::Json evidence = {{"op", c.name()}, {"backend", run.way}};
  std::optional<Wrong> wrong;
  std::int64_t looked_at = 0;
  for (const Branch& branch : branches(c)) {
    KeyProbe probe(c, branch, ops, context.seed("content"));
    if (!context.expect("the output is finite", probe.finite(),
                        fmt::format("{} ({}): the output is not finite", c.name(), run.way), codes::kNonFiniteForward,
                        evidence))
      return;
    for (const Place& place : places(c, branch)) {
      context.phase(fmt::format("{}: place {}", branch.name, place.index));
      std::optional<Wrong> here = probe.value(place);
      if (!here) here = probe.key(place);
      // The first place that is wrong is told, unless another one shows a leak of the future, which explains more.
      if (here && (!wrong || (here->code == codes::kFutureLeak && wrong->code != here->code))) wrong = here;
      ++looked_at;
    }
  }
  context.metric("places", static_cast<double>(looked_at), "1");
  if (wrong) evidence.update(wrong->evidence);
  context.expect("every key and value reaches exactly the rows that see it", !wrong,
                 wrong ? fmt::format("{} ({}): {}", c.name(), run.way, wrong->what) : "",
                 wrong ? wrong->code : codes::kForeignKey, evidence);
}

}  // namespace suites::autograd_cases
