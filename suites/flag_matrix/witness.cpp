#include "suites/flag_matrix/witness.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "harness/compare.hpp"
#include "nsa/sdpa/sdpa.hpp"
#include "suites/codes.hpp"

namespace suites::flag_witness {

namespace {

using flag_execution::Execution;
using flag_execution::Plan;
using probes::OpCounts;
using reports::Json;

bool contains_all(const std::string& text, const std::vector<std::string>& words) {
  return std::all_of(words.begin(), words.end(), [&](const std::string& word) { return text.find(word) != text.npos; });
}

// Queries [B,S,heads,D], pair i of each turned by its position times `factor` / base^(2i/D); in fp64.
at::Tensor turned_further(const at::Tensor& q, const nsa::CuSeqlens& cu_seqlens, double base, double factor) {
  const at::TensorOptions options(at::TensorOptions(q.device()).dtype(at::kDouble));
  const std::int64_t D = q.size(3);
  std::vector<at::Tensor> positions;
  for (const auto& [begin, end] : nsa::documents(cu_seqlens, q.size(1)))
    positions.push_back(at::arange(end - begin, options));
  const at::Tensor angle = at::outer(at::cat(positions) * factor, at::pow(base, at::arange(0, D, 2, options) / -D));
  const at::Tensor pairs = at::view_as_complex(q.to(at::kDouble).unflatten(-1, {D / 2, 2}).contiguous());
  return at::view_as_real(pairs * at::polar(at::ones_like(angle), angle).unsqueeze(1)).flatten(-2);
}

// The judgements on one execution.
class Judge {
 public:
  Judge(const nsa::Environment& environment, const Yardstick& yardstick, const Execution& seen, const Plan& plan)
      : environment_(environment),
        yardstick_(yardstick),
        seen_(seen),
        rope_base_(plan.model.rope_base),
        dim_(plan.model.dim),
        call_(flag_execution::call_of(plan, yardstick.training)) {}

  void way(const std::string& op, const std::string& wanted) {
    if (seen_.in_one()) return in_one(op, wanted);
    if (!seen_.called(op)) return;  // branches() asks whether it should have been
    const std::vector<flag_footprint::Footprint>& ways = yardstick_.ways.at(op);
    const OpCounts& ran = seen_.ops.at(op);
    const std::vector<std::string> closest = flag_footprint::closest(ran, ways);
    record(op, closest);
    if (std::find(closest.begin(), closest.end(), wanted) != closest.end()) return;
    const auto way = std::find_if(ways.begin(), ways.end(), [&](const auto& w) { return w.way == wanted; });
    const OpCounts requested = way == ways.end() ? OpCounts{} : way->ops;
    std::vector<std::string> lacking;
    for (const auto& [name, times] : flag_footprint::missing(requested, ran)) lacking.push_back(name);
    disagree(codes::kFlagIgnored,
             fmt::format("{} must run as {}, but ran as {} (the route says: {}); operations that did not run: {}", op,
                         wanted, fmt::join(closest, " or "), route_of(op), fmt::join(lacking, ", ")),
             {{"op", op},
              {"requested", wanted},
              {"executed", closest},
              {"route", route_of(op)},
              {"requested_ops", requested},
              {"executed_ops", ran}});
  }

  // All parts went in one, which only our own kernels do.
  void in_one(const std::string& op, const std::string& wanted) {
    const nsa::Choice* choice = choice_of("attend");
    const std::string route = route_of("attend");
    if (choice == nullptr || choice->backend != nsa::Backend::cuda || choice->variant != nsa::RouteVariant::in_one)
      disagree(codes::kRouteRecord, fmt::format("attention went in one, but the product recorded '{}' for it", route),
               {{"op", op}, {"recorded", route}, {"executed", "cuda/in_one"}});
    if (wanted == "cuda") return;
    disagree(codes::kFlagIgnored,
             fmt::format("{} must run as {}, but attention went in one, by our own kernels (the route says: {})", op,
                         wanted, route),
             {{"op", op}, {"requested", wanted}, {"executed", {"cuda"}}, {"route", route}});
  }

  // Where FlashAttention-2 was asked for and not taken, the route must name a rule that refuses it here.
  void refusal(nsa::Op op) {
    const std::string name(nsa::to_string(op));
    if (!seen_.called(name) && !seen_.in_one()) return;
    const nsa::Choice* choice = choice_of(seen_.in_one() ? "attend" : name);
    if (choice == nullptr) return;  // no function of the product's own ran: record() tells
    const auto any = flag_truth::refusal_words(environment_, call_, op);
    if (any.empty() && !choice->why.empty()) return;
    const auto refused = std::find_if(choice->refused.begin(), choice->refused.end(), [&](const nsa::Refused& r) {
      return r.op == op && r.backend == nsa::Backend::flash;
    });
    const std::string reason = refused == choice->refused.end() ? "" : refused->why;
    if (std::any_of(any.begin(), any.end(), [&](const auto& words) { return contains_all(reason, words); })) return;
    disagree(
        codes::kRefusalWithoutReason,
        fmt::format("{}: the route gives {}", name,
                    reason.empty() ? "no reason" : fmt::format("'{}', which is no rule that refuses here", reason)),
        {{"op", name}, {"route", route_of(name)}, {"one_of", any}});
  }

  // A forced branch runs alone; else all three run.
  void branches() {
    const std::string forced = flag_truth::forced_branch(environment_);
    const std::map<std::string, std::string> ops = {
        {"cmp", "attend_compressed"}, {"sel", "attend_selected"}, {"win", "attend_window"}};
    for (const auto& [branch, op] : ops) {
      const bool wanted = forced.empty() || forced == branch, ran = seen_.called(op) || seen_.in_one();
      if (ran == wanted) continue;
      disagree(codes::kFlagIgnored,
               fmt::format("{} {}", op, wanted ? "did not run" : "ran although another branch is forced"),
               {{"op", op}, {"executed", ran}});
    }
  }

  // The pass made the gate's last layer differ from token to token, so a third each is the flag's doing alone.
  void uniform_gate() {
    if (!seen_.called("combine") && !seen_.in_one()) return;
    const double distance = (seen_.gates.to(at::kDouble) - 1.0 / 3.0).abs().max().item<double>();
    const bool uniform = distance < 1e-6;  // 1/3 in fp32
    if (uniform == flag_truth::on(environment_, "NSA_FORCE_UNIFORM_GATE")) return;
    disagree(codes::kFlagIgnored,
             uniform ? "every gate that came to combine is 1/3 without being told to"
                     : "the gates that came to combine are not 1/3",
             {{"largest_distance_from_a_third", reports::number(distance)}});
  }

  // Gates that mix carry a graph; stopped, forced and uniform ones do not. The gradient's value says nothing: it is
  // zero for a gate that never learns for another reason too (init_stats and autograd find that).
  void gate_graph() {
    if (!yardstick_.training) return;
    const bool wanted = !flag_truth::on(environment_, "NSA_STOPGRAD_GATES") &&
                        flag_truth::forced_branch(environment_).empty() &&
                        !flag_truth::on(environment_, "NSA_FORCE_UNIFORM_GATE");
    if (seen_.gates_carry_graph != wanted) {
      disagree(codes::kFlagIgnored,
               wanted ? "the gates carry no graph: no gradient can reach them"
                      : "the gates carry a graph although their gradient must be stopped",
               {{"gates_carry_graph", seen_.gates_carry_graph}});
    }
    if (!seen_.others_have_gradient && !seen_.overwritten)
      disagree(codes::kFlagIgnored, "no other parameter gets a gradient",
               {{"gates_carry_graph", seen_.gates_carry_graph}});
  }

  // Our own kernels are no operations of ATen: where they norm, none of its norms runs.
  void norm() {
    const std::string ran = seen_.norms_by_aten > 0 ? "aten" : "cuda",
                      wanted = flag_truth::expected_norm(environment_, call_, dim_);
    const Json evidence = {{"part", "norm"}, {"requested", wanted}, {"executed", ran}, {"recorded", seen_.parts}};
    if (ran != wanted)
      disagree(codes::kFlagIgnored, fmt::format("the norms must run as {}, but ran as {}", wanted, ran), evidence);
    const bool told = !seen_.parts.empty() && std::all_of(seen_.parts.begin(), seen_.parts.end(), [&](const auto& p) {
      return p.part != "norm" || p.way == ran;
    });
    if (!told)
      disagree(codes::kRouteRecord, fmt::format("the norms ran as {}, which is not what the product recorded", ran),
               evidence);
  }

  // The joined MLP asks for products of matrices; torch's Linear for at::matmul of the batch.
  void mlp() {
    const bool wanted = flag_truth::expects_joined_mlp(environment_, call_);
    const std::string ran = seen_.mlp_by_aten ? "aten" : "joined";
    const Json evidence = {
        {"part", "mlp"}, {"requested", wanted ? "joined" : "aten"}, {"executed", ran}, {"recorded", seen_.parts}};
    if (seen_.mlp_by_aten == wanted)
      disagree(codes::kFlagIgnored,
               fmt::format("the MLP must run as {}, but ran as {}", wanted ? "joined" : "aten", ran), evidence);
    const auto told =
        std::find_if(seen_.parts.begin(), seen_.parts.end(), [](const auto& p) { return p.part == "mlp"; });
    if (told == seen_.parts.end() || told->way != ran)
      disagree(codes::kRouteRecord, fmt::format("the MLP ran as {}, which is not what the product recorded", ran),
               evidence);
  }

  // Whether our own kernels serve the joined MLP's SiLU hangs on its rows and the GPU, which this suite does not know:
  // the flag must keep it from them, and the record must say which it was.
  void silu() {
    const auto told =
        std::find_if(seen_.parts.begin(), seen_.parts.end(), [](const auto& p) { return p.part == "silu"; });
    if (seen_.mlp_by_aten && told == seen_.parts.end()) return;  // a part of the joined MLP alone
    const std::string ran = seen_.silu_by_aten ? "aten" : "cuda";
    const Json evidence = {{"part", "silu"}, {"executed", ran}, {"recorded", seen_.parts}};
    if (ran == "cuda" && flag_truth::off(environment_, "NSA_FUSED_SILU"))
      disagree(codes::kFlagIgnored, "the MLP's SiLU must run as aten, but ran as cuda", evidence);
    if (told == seen_.parts.end() || told->way != ran)
      disagree(codes::kRouteRecord,
               fmt::format("the MLP's SiLU ran as {}, which is not what the product recorded", ran), evidence);
  }

  // Of one product for all projections the queries are a slice: their tokens lie further apart than their own heads.
  void projections() {
    const bool one = in_one_product(seen_), wanted = flag_truth::expects_one_product(environment_, call_);
    const std::string ran = one ? "cuda" : "aten";
    const Json evidence = {
        {"part", "project"}, {"requested", wanted ? "cuda" : "aten"}, {"executed", ran}, {"recorded", seen_.parts}};
    if (one != wanted)
      disagree(codes::kFlagIgnored,
               wanted ? "the projections must be one product, and the queries are no slice of one"
                      : "the projections must not be one product, but the queries are a slice of one",
               evidence);
    const auto told =
        std::find_if(seen_.parts.begin(), seen_.parts.end(), [](const auto& p) { return p.part == "project"; });
    if (told == seen_.parts.end() || told->way != ran)
      disagree(codes::kRouteRecord,
               fmt::format("the projections ran as {}, which is not what the product recorded", ran), evidence);
  }

  // A finiteness test of every branch that ran.
  void strict_asserts() {
    // Under NSA_FORCE_PARITY the reference is what runs; there is nothing to fall back to.
    const bool wanted =
        flag_truth::on(environment_, "NSA_STRICT_ASSERTS") && !flag_truth::on(environment_, "NSA_FORCE_PARITY");
    for (const std::string op : {"attend_compressed", "attend_selected", "attend_window", "attend"}) {
      if (!seen_.called(op)) continue;
      const OpCounts& ran = seen_.ops.at(op);
      const bool looked = std::any_of(ran.begin(), ran.end(), [](const auto& item) {
        return item.first.find("isfinite") != std::string::npos || item.first.find("isnan") != std::string::npos;
      });
      if (wanted && !looked) {
        disagree(codes::kFlagIgnored, fmt::format("no operation looked whether the output of {} is finite", op),
                 {{"op", op}, {"executed_ops", ran}});
      }
    }
  }

  // The queries are those without flags, each turned further by its position times (1/scale - 1); nothing else may turn
  // them. Bits are asked for where the scale is 1 and the layer made them in the same way, else 2 % of their
  // size: more than what bf16 rounds away.
  void rope_scale() {
    const at::Tensor plain = queries(yardstick_.plain), seen = queries(seen_);
    if (!plain.defined() || !seen.defined()) return;
    const bool same = at::equal(seen, plain);
    const auto set = environment_.find("NSA_ROPE_SCALE");
    const double scale = set == environment_.end() ? 1.0 : std::stod(set->second);
    // What makes the queries has ways of its own, which round differently.
    const bool as_plain = in_one_product(seen_) == in_one_product(yardstick_.plain) &&
                          seen_.norms_by_aten == yardstick_.plain.norms_by_aten;
    if (scale == 1.0 && as_plain) {
      if (!same)
        disagree(codes::kFlagIgnored, "the queries differ from those without flags", {{"queries_bit_equal", same}});
      return;
    }
    const at::Tensor wanted =
        turned_further(plain, yardstick_.plain.inputs.window.cu_seqlens, rope_base_, 1 / scale - 1);
    const double off = ((seen.to(at::kDouble) - wanted).norm() / wanted.norm()).item<double>();
    if (harness::at_most(off, 0.02)) return;
    disagree(codes::kFlagIgnored,
             same ? "the queries are turned as if NSA_ROPE_SCALE were 1"
                  : fmt::format("the queries are not turned by their positions divided by NSA_ROPE_SCALE={}", scale),
             {{"queries_bit_equal", same}, {"relative_error", off}});
  }

  [[nodiscard]] const nsa::Call& call() const { return call_; }
  std::vector<Disagreement> found;

 private:
  // Undefined where no attention was called, which branches() tells.
  static at::Tensor queries(const Execution& e) {
    for (const at::Tensor& q : {e.inputs.window.q, e.inputs.compressed.q, e.inputs.selected.q})
      if (q.defined()) return q;
    return {};
  }
  static bool in_one_product(const Execution& e) {
    const at::Tensor q = queries(e);
    return q.defined() && q.stride(1) > q.size(2) * q.size(3);
  }
  // What the product says that it took must be what ran.
  void record(const std::string& op, const std::vector<std::string>& closest) {
    const nsa::Choice* choice = choice_of(op);
    const std::string recorded = choice == nullptr ? "" : flag_footprint::name_of(op, *choice);
    if (std::find(closest.begin(), closest.end(), recorded) != closest.end()) return;
    disagree(
        codes::kRouteRecord,
        fmt::format("the product recorded '{}' for {}, but it ran as {}", route_of(op), op, fmt::join(closest, " or ")),
        {{"op", op}, {"recorded", route_of(op)}, {"executed", closest}, {"executed_ops", seen_.ops.at(op)}});
  }
  // Null: no function of the product's own ran.
  [[nodiscard]] const nsa::Choice* choice_of(const std::string& op) const {
    const auto known = seen_.routes.find(op);
    return known == seen_.routes.end() ? nullptr : &known->second;
  }
  // For people: "sdpa/packed (why)".
  [[nodiscard]] std::string route_of(const std::string& op) const {
    const nsa::Choice* choice = choice_of(op);
    return choice == nullptr ? "" : fmt::format("{} ({})", nsa::to_string(*choice), choice->why);
  }
  void disagree(std::string_view code, std::string what, Json evidence) {
    found.push_back({code, std::move(what), std::move(evidence)});
  }

  const nsa::Environment& environment_;
  const Yardstick& yardstick_;
  const Execution& seen_;
  const double rope_base_;
  const std::int64_t dim_;
  const nsa::Call call_;
};

}  // namespace

std::vector<std::string> blind_spots(const Yardstick& yardstick) {
  std::vector<std::string> blind;
  for (const auto& [op, ways] : yardstick.ways)
    for (std::size_t i = 0; i < ways.size(); ++i)
      for (std::size_t j = i + 1; j < ways.size(); ++j)
        if (ways[i].ops == ways[j].ops) blind.push_back(fmt::format("{}: {} and {}", op, ways[i].way, ways[j].way));
  return blind;
}

Yardstick measure(const Plan& plan, bool training) {
  const auto how = training ? nsa::sdpa::Selection::packed_safe : nsa::sdpa::Selection::packed;
  const auto by_name = std::make_shared<Seams>();
  by_name->ops.push_back([how](nsa::Ops, const nsa::Call&) { return nsa::sdpa::ops(how); });
  Yardstick yardstick;
  yardstick.training = training;
  yardstick.plain = flag_execution::execute(Subject(by_name), plan, {}, training);
  const at::AutoGradMode mode(training);
  yardstick.ways = flag_footprint::demonstrate(yardstick.plain.inputs);
  return yardstick;
}

std::vector<Disagreement> judge(const nsa::Environment& environment, const Yardstick& yardstick, const Execution& seen,
                                const Plan& plan) {
  Judge judge(environment, yardstick, seen, plan);
  const flag_truth::Ways ways = flag_truth::expected_ways(environment, judge.call());
  judge.way("attend_compressed", ways.compressed);
  judge.way("attend_selected", ways.selected);
  judge.way("attend_window", ways.window);
  judge.refusal(nsa::Op::attend_compressed);
  judge.refusal(nsa::Op::attend_window);
  judge.branches();
  judge.uniform_gate();
  judge.gate_graph();
  judge.norm();
  judge.projections();
  judge.mlp();
  judge.silu();
  judge.strict_asserts();
  judge.rope_scale();
  return judge.found;
}

}  // namespace suites::flag_witness
