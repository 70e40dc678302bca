#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>

#include "nsa/cuda/features.hpp"
#include "suites/codes.hpp"
#include "suites/flag_matrix/checks.hpp"
#include "suites/flag_matrix/tests/tiny_plan.hpp"
#include "suites/flag_matrix/witness.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace flag_matrix_test {

using namespace suites;
using flag_execution::Plan;
using flag_execution::tiny_plan;
using tests::Codes;
std::string code(std::string_view c) { return std::string(c); }

struct Outcome {
  Codes codes;
  std::string message;
  harness::Json metrics = harness::Json::object();
};

Outcome run(const std::shared_ptr<Seams>& seams, const std::string& filter = "") {
  const harness::Settings settings = tests::default_settings();
  Outcome outcome;
  for (const auto& ran : tests::run_suite(flag_matrix(Subject(seams)), settings, filter)) {
    EXPECT_EQ(ran.exception, "") << ran.id;
    outcome.codes.merge(ran.context.grave_codes());
    for (const auto& f : ran.context.findings) outcome.message += f.message + "\n";
    outcome.metrics.update(ran.context.metrics);
  }
  return outcome;
}

std::size_t disagreements(const Subject& subject, const nsa::Environment& environment, const nsa::Environment& asked,
                          bool training) {
  const Plan plan = tiny_plan();
  const auto yardstick = flag_witness::measure(plan, training);
  const auto seen = flag_execution::execute(subject, plan, nsa::resolve(environment), training);
  return flag_witness::judge(asked, yardstick, seen, plan).size();
}

TEST(FlagMatrix, CleanProductIsSilentAndEveryPairIsCovered) {
  const Outcome outcome = run(std::make_shared<Seams>());
  EXPECT_EQ(outcome.codes, Codes{}) << outcome.message;
  EXPECT_GT(outcome.metrics["pairs_executed"]["value"].get<double>(), 300);
  EXPECT_GT(outcome.metrics["pairs_refused"]["value"].get<double>(), 30);
}

TEST(FlagMatrix, TablesAssembledFromDefaultsAreFound) {
  const Outcome outcome = run(tests::on_ops([](nsa::Ops, const nsa::Call& call) {
    const nsa::EffectiveFlags defaults;
    return nsa::assemble(nsa::route(defaults, call), defaults);
  }));
  // What ran is not what was asked for, and not what the product recorded.
  EXPECT_EQ(outcome.codes, (Codes{code(codes::kFlagIgnored), code(codes::kRouteRecord)}));
  EXPECT_NE(outcome.message.find("NSA_FORCE_SEL_MASK=1"), std::string::npos) << outcome.message;
  EXPECT_NE(outcome.message.find("must run as masked, but ran as packed"), std::string::npos) << outcome.message;
}

// A gate whose last layer is all zero mixes by a third each and learns nothing: that is not what the flags do.
TEST(FlagMatrix, AFrozenGateIsNotTakenForAFlag) {
  const auto seams = std::make_shared<Seams>();
  seams->model.push_back([](nsa::LanguageModelImpl& model) {
    const at::NoGradGuard no_grad;
    for (auto& parameter : model.named_parameters())
      if (parameter.key().find("gate.fc2") != std::string::npos) parameter.value().zero_();
  });
  for (const bool training : {false, true}) {
    EXPECT_EQ(disagreements(Subject(seams), {}, {}, training), 0U);
    EXPECT_EQ(disagreements(Subject(seams), {{"NSA_STOPGRAD_GATES", "1"}}, {{"NSA_STOPGRAD_GATES", "1"}}, training),
              0U);
  }
}

TEST(FlagMatrix, AWriteInPlaceIsToldOnceAndByName) {
  const Outcome outcome =
      run(tests::on_ops([](nsa::Ops ops, const nsa::Call&) {
            ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
              nsa::Attended out = inner(args);
              if (out.o.requires_grad()) {
                const at::NoGradGuard no_grad;
                args.v.as_strided({1}, {1}, args.v.storage_offset()).mul_(1.0);
              }
              return out;
            });
            return ops;
          }),
          "singles");
  EXPECT_EQ(outcome.codes, Codes{code(codes::kInplaceWrite)}) << outcome.message;
  EXPECT_EQ(outcome.message.find("backward refused"), outcome.message.rfind("backward refused")) << outcome.message;
}

TEST(FlagMatrix, ARecordThatIsNotWhatRanIsFound) {
  // The way is changed behind the route's back, to one that the flags would allow for another reason.
  const Subject subject(tests::on_ops([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, nsa::backend_ops(nsa::Backend::reference).attend_window);
    return ops;
  }));
  const Plan plan = tiny_plan();
  const auto yardstick = flag_witness::measure(plan, false);
  const auto seen = flag_execution::execute(subject, plan, {}, false);
  bool named = false;
  for (const auto& d : flag_witness::judge({}, yardstick, seen, plan)) named = named || d.code == codes::kRouteRecord;
  EXPECT_TRUE(named);
}

TEST(FlagMatrix, ARefusalMustGiveARuleThatRefuses) {
  const Plan plan = tiny_plan();
  const auto yardstick = flag_witness::measure(plan, false);
  const nsa::Environment asked = {{"NSA_USE_FA2", "1"}};
  auto seen = flag_execution::execute(Subject(std::make_shared<Seams>()), plan, nsa::resolve(asked), false);
  const auto refusals = [&] {
    std::size_t count = 0;
    for (const auto& d : flag_witness::judge(asked, yardstick, seen, plan))
      count += d.code == codes::kRefusalWithoutReason ? 1 : 0;
    return count;
  };
  EXPECT_EQ(refusals(), 0U);
  const auto refused = [](const char* why) -> nsa::Choice {
    return {nsa::Backend::sdpa,
            nsa::RouteVariant::none,
            std::string("flash refused: ") + why,
            {{nsa::Op::attend_window, nsa::Backend::cuda, "device is cpu"},
             {nsa::Op::attend_window, nsa::Backend::flash, why}}};
  };
  seen.routes["attend_window"] = refused("device is cpu");
  EXPECT_EQ(refusals(), 0U);
  seen.routes["attend_window"] = refused("the moon is full");
  EXPECT_EQ(refusals(), 1U) << "that another backend was refused by such a rule is no reason";
  seen.routes["attend_window"] = {nsa::Backend::sdpa, nsa::RouteVariant::none, "flash refused: device is cpu"};
  EXPECT_EQ(refusals(), 1U) << "words for people are no record";
  seen.routes["attend_compressed"] = {nsa::Backend::sdpa, nsa::RouteVariant::none, ""};
  EXPECT_EQ(refusals(), 2U);
}

// Each flag that changes what runs, asked for and not given: the witness must see it, in every gradient mode in which
// the flag can show.
TEST(FlagMatrix, EveryWitnessedFlagIsMissedWhenItIsNotInForce) {
  const Subject subject(std::make_shared<Seams>());
  const std::vector<std::pair<nsa::Environment, bool>> ignored = {
      {{{"NSA_FORCE_SEL_MASK", "1"}}, false},
      {{{"NSA_FORCE_SEL_MASK", "1"}}, true},
      {{{"NSA_USE_SEL_PACK", "0"}, {"NSA_USE_SEL_MASK", "1"}}, false},
      {{{"NSA_FORCE_PARITY", "1"}}, false},
      {{{"NSA_FORCE_PARITY", "1"}}, true},
      {{{"NSA_TRAIN_SAFE_PACK", "1"}}, false},
      {{{"NSA_STRICT_ASSERTS", "1"}}, false},
      {{{"NSA_FORCE_UNIFORM_GATE", "1"}}, false},
      {{{"NSA_STOPGRAD_GATES", "1"}}, true},
      {{{"NSA_FORCE_BRANCH", "cmp"}}, false},
      {{{"NSA_FORCE_BRANCH", "win"}}, true},
      {{{"NSA_ROPE_SCALE", "2"}}, false}};
  for (const auto& [asked, training] : ignored) {
    EXPECT_GT(disagreements(subject, {}, asked, training), 0U) << asked.begin()->first << " " << training;
    EXPECT_EQ(disagreements(subject, asked, asked, training), 0U) << asked.begin()->first << " " << training;
    EXPECT_GT(disagreements(subject, asked, {}, training) + (asked.contains("NSA_STRICT_ASSERTS") ? 1 : 0), 0U)
        << "in force without being asked: " << asked.begin()->first << " " << training;
  }
}

// On a CPU the norms are ATen's whatever the flag says; a pass in which none of its norms ran is another thing.
TEST(FlagMatrix, ANormThatTakesAnotherWayOrIsToldToIsFound) {
  const Plan plan = tiny_plan();
  const auto yardstick = flag_witness::measure(plan, false);
  auto seen = flag_execution::execute(Subject(std::make_shared<Seams>()), plan, {}, false);
  EXPECT_EQ(seen.norms_by_aten, 3);
  const auto found = [&] {
    Codes all;
    for (const auto& d : flag_witness::judge({}, yardstick, seen, plan)) all.insert(std::string(d.code));
    return all;
  };
  EXPECT_EQ(found(), Codes{});
  const auto told = std::find_if(seen.parts.begin(), seen.parts.end(), [](const auto& p) { return p.part == "norm"; });
  ASSERT_NE(told, seen.parts.end());
  told->way = "cuda";
  EXPECT_EQ(found(), Codes{code(codes::kRouteRecord)});
  seen.norms_by_aten = 0;
  EXPECT_EQ(found(), Codes{code(codes::kFlagIgnored)});
  seen.parts.clear();
  EXPECT_EQ(found(), (Codes{code(codes::kFlagIgnored), code(codes::kRouteRecord)}));

  nsa::Call gpu = flag_execution::call_of(plan, false);
  gpu.cuda = true;
  gpu.precision = nsa::Precision::bf16;
  using flag_truth::expected_norm;
  EXPECT_EQ(expected_norm({}, gpu, 768), "cuda");
  EXPECT_EQ(expected_norm({}, gpu, 12), "aten");
  for (const nsa::Environment& e :
       {nsa::Environment{{"NSA_FUSED_NORM", "0"}}, {{"NSA_USE_CUDA", "0"}}, {{"NSA_FORCE_PARITY", "1"}}})
    EXPECT_EQ(expected_norm(e, gpu, 768), "aten");
}

// On a CPU the projections are apart whatever the flag says.
TEST(FlagMatrix, ProjectionsThatTakeAnotherWayOrAreToldToAreFound) {
  const Plan plan = tiny_plan();
  const auto yardstick = flag_witness::measure(plan, false);
  auto seen = flag_execution::execute(Subject(std::make_shared<Seams>()), plan, {}, false);
  const auto found = [&] {
    Codes all;
    for (const auto& d : flag_witness::judge({}, yardstick, seen, plan)) all.insert(std::string(d.code));
    return all;
  };
  EXPECT_EQ(found(), Codes{});
  const auto told =
      std::find_if(seen.parts.begin(), seen.parts.end(), [](const auto& p) { return p.part == "project"; });
  ASSERT_NE(told, seen.parts.end());
  told->way = "cuda";
  EXPECT_EQ(found(), Codes{code(codes::kRouteRecord)});
  at::Tensor& q = seen.inputs.window.q;
  q = at::cat({q, q}, 2).narrow(2, 0, q.size(2));  // a slice of longer rows
  EXPECT_EQ(found(), Codes{code(codes::kFlagIgnored)});

  nsa::Call gpu = flag_execution::call_of(plan, false);
  gpu.cuda = true;
  gpu.cuda_major = 9;
  gpu.precision = nsa::Precision::bf16;
  gpu.Dk = gpu.Dv = 64;
  using flag_truth::expects_one_product;
  const bool built = nsa::project_refusal(gpu).empty();  // for this GPU
  EXPECT_EQ(expects_one_product({}, gpu), built);
  EXPECT_EQ(expects_one_product({{"NSA_STOPGRAD_GATES", "1"}}, gpu), built);
  for (const nsa::Environment& e : {nsa::Environment{{"NSA_FUSED_PROJECT", "0"}},
                                    {{"NSA_USE_CUDA", "0"}},
                                    {{"NSA_FORCE_PARITY", "1"}},
                                    {{"NSA_FORCE_BRANCH", "win"}},
                                    {{"NSA_FORCE_UNIFORM_GATE", "1"}}})
    EXPECT_FALSE(expects_one_product(e, gpu));
}

// On a CPU the MLP is ATen's, function by function, whatever the flag says.
TEST(FlagMatrix, AnMlpThatTakesAnotherWayOrIsToldToIsFound) {
  const Plan plan = tiny_plan();
  const auto yardstick = flag_witness::measure(plan, false);
  auto seen = flag_execution::execute(Subject(std::make_shared<Seams>()), plan, {}, false);
  EXPECT_TRUE(seen.mlp_by_aten);
  const auto found = [&] {
    Codes all;
    for (const auto& d : flag_witness::judge({}, yardstick, seen, plan)) all.insert(std::string(d.code));
    return all;
  };
  EXPECT_EQ(found(), Codes{});
  const auto told = std::find_if(seen.parts.begin(), seen.parts.end(), [](const auto& p) { return p.part == "mlp"; });
  ASSERT_NE(told, seen.parts.end());
  told->way = "joined";
  EXPECT_EQ(found(), Codes{code(codes::kRouteRecord)});
  seen.mlp_by_aten = false;
  EXPECT_EQ(found(), (Codes{code(codes::kFlagIgnored), code(codes::kRouteRecord)}));  // nothing is told of its SiLU

  nsa::Call gpu = flag_execution::call_of(plan, false);
  gpu.cuda = true;
  gpu.precision = nsa::Precision::bf16;
  using flag_truth::expects_joined_mlp;
  EXPECT_TRUE(expects_joined_mlp({}, gpu));
  for (const nsa::Environment& e :
       {nsa::Environment{{"NSA_FUSED_MLP", "0"}}, {{"NSA_USE_CUDA", "0"}}, {{"NSA_FORCE_PARITY", "1"}}})
    EXPECT_FALSE(expects_joined_mlp(e, gpu));
}

TEST(FlagMatrix, ASiluThatTakesAnotherWayOrIsToldToIsFound) {
  const Plan plan = tiny_plan();
  const auto yardstick = flag_witness::measure(plan, false);
  auto seen = flag_execution::execute(Subject(std::make_shared<Seams>()), plan, {}, false);
  EXPECT_TRUE(seen.silu_by_aten);
  const auto found = [&](const nsa::Environment& environment) {
    Codes all;
    for (const auto& d : flag_witness::judge(environment, yardstick, seen, plan)) all.insert(std::string(d.code));
    return all;
  };
  seen.parts.push_back({"silu", "aten", "cuda refused: few rows"});
  EXPECT_EQ(found({}), Codes{});
  seen.silu_by_aten = false;
  EXPECT_EQ(found({}), Codes{code(codes::kRouteRecord)});
  seen.parts.back().way = "cuda";
  EXPECT_EQ(found({}), Codes{});
  EXPECT_EQ(found({{"NSA_FUSED_SILU", "0"}}), Codes{code(codes::kFlagIgnored)});
}

// The queries differ from those without the flag in either way: only their angles tell a divisor from a factor.
TEST(FlagMatrix, APositionScaleThatMultipliesIsFound) {
  const Subject subject(std::make_shared<Seams>());
  EXPECT_GT(disagreements(subject, {{"NSA_ROPE_SCALE", "0.5"}}, {{"NSA_ROPE_SCALE", "2"}}, false), 0U);
  EXPECT_EQ(disagreements(subject, {{"NSA_ROPE_SCALE", "0.5"}}, {{"NSA_ROPE_SCALE", "0.5"}}, false), 0U);
}

TEST(FlagMatrix, OneIgnoredFlagOfAPairIsFound) {
  const Subject subject(std::make_shared<Seams>());
  EXPECT_GT(disagreements(subject, {{"NSA_FORCE_UNIFORM_GATE", "1"}},
                          {{"NSA_FORCE_UNIFORM_GATE", "1"}, {"NSA_FORCE_SEL_MASK", "1"}}, false),
            0U);
}

TEST(FlagMatrix, ExtraOperationsOfAWrapperDoNotDeceive) {
  const Subject subject(tests::on_ops([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      for (std::int64_t row = 0; row < args.k.size(1); ++row) (void)args.k.select(1, row).sum().item<double>();
      return inner(args);
    });
    return ops;
  }));
  EXPECT_EQ(disagreements(subject, {}, {}, false), 0U);
  EXPECT_EQ(disagreements(subject, {{"NSA_FORCE_PARITY", "1"}}, {{"NSA_FORCE_PARITY", "1"}}, false), 0U);
}

TEST(Ways, ClosestPrefersCompleteThenLean) {
  const std::vector<flag_footprint::Footprint> ways = {
      {"a", {{"x", 2}, {"y", 1}}}, {"b", {{"x", 2}}}, {"c", {{"z", 1}}}};
  using Names = std::vector<std::string>;
  EXPECT_EQ(flag_footprint::closest({{"x", 2}, {"y", 1}}, ways),
            Names{"a"});  // b is complete too, but leaves y unexplained
  EXPECT_EQ(flag_footprint::closest({{"x", 2}, {"w", 9}}, ways), Names{"b"});
  EXPECT_EQ(flag_footprint::closest({{"z", 1}, {"x", 1}}, ways), Names{"c"});
  EXPECT_EQ(flag_footprint::closest({{"x", 2}}, {{"b", {{"x", 2}}}, {"twin", {{"x", 2}}}}), (Names{"b", "twin"}));
  EXPECT_EQ(flag_footprint::missing({{"x", 2}, {"y", 1}}, {{"x", 1}}), (flag_footprint::OpCounts{{"x", 1}, {"y", 1}}));
}

TEST(TruthTable, HasTheTwentySevenSettingsOnce) {
  std::set<std::string> keys;
  for (const auto& row : flag_truth::fa2_table()) keys.insert({row.use, row.win, row.cmp});
  EXPECT_EQ(keys.size(), 27U);
}

TEST(TruthTable, TheSeedsExamples) {
  const auto row = [](char use, char win, char cmp) {
    for (const auto& r : flag_truth::fa2_table()) {
      if (r.use == use && r.win == win && r.cmp == cmp)
        return std::array{r.all_effective, r.win_effective, r.cmp_effective};
    }
    throw std::logic_error("no such row");
  };
  using Triple = std::array<bool, 3>;
  EXPECT_EQ(row('-', '-', '-'), (Triple{false, false, false}));
  EXPECT_EQ(row('1', '-', '-'), (Triple{true, true, true}));
  EXPECT_EQ(row('0', '1', '1'), (Triple{false, false, false}));
  EXPECT_EQ(row('1', '0', '-'), (Triple{true, false, true}));
  EXPECT_EQ(row('-', '1', '-'), (Triple{false, true, false}));
  EXPECT_EQ(row('-', '0', '-'), (Triple{false, false, false}));  // a disabling flag enables nothing
}

}  // namespace flag_matrix_test
