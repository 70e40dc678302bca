#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "suites/codes.hpp"
#include "suites/flag_matrix/checks.hpp"
#include "suites/flag_matrix/matrix.hpp"
#include "suites/flag_matrix/tests/tiny_plan.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace cover_test {

using namespace suites;
using tests::Codes;
std::string code(std::string_view c) { return std::string(c); }

flag_execution::Plan plan_of(bool packed) {
  flag_execution::Plan plan = flag_execution::tiny_plan();
  plan.packed = packed;
  if (packed) plan.S = flag_execution::packed_length(plan.S);
  return plan;
}

struct Found {
  Codes codes;
  std::string messages;
  harness::Json metrics;
};
template <typename Check>
Found found_by(const Check& check) {
  const harness::Settings settings = tests::default_settings();
  tests::RecordingContext context(settings);
  check(context);
  Found found{context.grave_codes(), "", context.metrics};
  for (const auto& f : context.findings) found.messages += f.message + "\n";
  EXPECT_GT(context.checks, 0);
  return found;
}

// The lengths' own names, in the order of the batch.
TEST(Documents, LongestHasTheLengthAskedFor) {
  for (const std::int64_t length : {7, 9, 37, 67, 31, 1027}) {
    const std::int64_t S = flag_execution::packed_length(length);
    const at::Tensor cu = flag_execution::documents_of(S);
    nsa::check_cu_seqlens(cu, S);
    EXPECT_EQ(cu.diff().max().item<std::int64_t>(), length);
    EXPECT_EQ(cu.diff().min().item<std::int64_t>(), 0);
  }
}

TEST(Matrix, EveryVariableOfTheTableIsTriedUnsetAndSet) {
  const auto& m = flag_matrix_rows::matrix();
  ASSERT_EQ(m.problem.factors.size(), nsa::flag_table().size());
  for (const nsa::FlagSpec& flag : nsa::flag_table()) {
    std::set<std::string> values;
    for (const nsa::Environment& e : m.environments)
      values.insert(e.contains(std::string(flag.name)) ? e.at(std::string(flag.name)) : "");
    EXPECT_EQ(values.size(), flag_matrix_rows::values_of(flag).size()) << flag.name;
  }
  for (const nsa::Environment& e : m.environments) EXPECT_NO_THROW((void)nsa::resolve(e));
  EXPECT_LT(m.environments.size(), 60U);
}

TEST(Matrix, AVariableOfAnUnknownTypeGetsNoValues) {
  EXPECT_TRUE(flag_matrix_rows::values_of({"NSA_NEW", "list", "", "", ""}).empty());
}

TEST(CoverArray, CoversAllLegalPairsAndTheProductRefusesTheRest) {
  const Found found = found_by([](auto& x) { flag_checks::cover_array(x); });
  EXPECT_EQ(found.codes, Codes{}) << found.messages;
  EXPECT_EQ(found.metrics["coverage"]["value"], 100.0);
  EXPECT_EQ(
      found.metrics["pairs_possible"]["value"].get<double>() - found.metrics["pairs_legal"]["value"].get<double>(),
      4.0);
}

TEST(Origins, AreThoseOfTheWrittenTable) {
  const Found found = found_by([](auto& x) { flag_checks::origins(x); });
  EXPECT_EQ(found.codes, Codes{}) << found.messages;
}

TEST(Origins, TheTableIsSharp) {
  const auto fields = flag_truth::expected_fields({{"NSA_USE_FA2", "0"}, {"NSA_USE_FA2_WIN", "1"}});
  EXPECT_EQ(fields.at("fa2_win").value, "false");
  EXPECT_EQ(fields.at("fa2_win").origin, "NSA_USE_FA2=0");
  EXPECT_EQ(flag_truth::expected_fields({{"NSA_FORCE_SEL_MASK", "0"}}).at("sel_mask").origin, "NSA_FORCE_SEL_MASK=0");
  EXPECT_EQ(flag_truth::expected_fields({}).size(), nsa::flatten(nsa::resolve({})).size());
}

TEST(Cover, CleanProductIsSilentDenseAndPacked) {
  for (const bool packed : {false, true}) {
    const Subject subject(std::make_shared<Seams>());
    const Found found = found_by([&](auto& x) { flag_checks::cover(subject, x, plan_of(packed)); });
    EXPECT_EQ(found.codes, Codes{}) << found.messages;
    EXPECT_EQ(found.metrics["executions"]["value"].get<double>(),
              2.0 * static_cast<double>(flag_matrix_rows::matrix().environments.size()));
  }
}

// Ignored only in packed batches: nothing but a packed situation can see it.
TEST(Cover, AFlagIgnoredInPackedBatchesIsFound) {
  const Subject subject(tests::on_ops([](nsa::Ops ops, const nsa::Call& call) {
    if (!call.packed) return ops;
    const nsa::EffectiveFlags defaults;
    ops.replace(&nsa::Ops::attend_selected, nsa::assemble(nsa::route(defaults, call), defaults).attend_selected);
    return ops;
  }));
  EXPECT_EQ(found_by([&](auto& x) { flag_checks::cover(subject, x, plan_of(false)); }).codes, Codes{});
  EXPECT_TRUE(found_by([&](auto& x) {
                flag_checks::cover(subject, x, plan_of(true));
              }).codes.contains(code(codes::kFlagIgnored)));
}

TEST(Cover, UnfilledOffsetsAreNamedAndNotAnException) {
  const Subject subject(tests::on_ops([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](nsa::AttendWindowArgs args) {
      if (args.cu_seqlens) args.cu_seqlens = at::full_like(*args.cu_seqlens, 0x7f7f7f7f);
      return inner(args);
    });
    return ops;
  }));
  EXPECT_TRUE(found_by([&](auto& x) {
                flag_checks::cover(subject, x, plan_of(true));
              }).codes.contains(code(codes::kCuSeqlens)));
}

// A branch alone may give no gradient to the queries (nothing to see, or a single key): that is no flag's doing.
TEST(Cover, ShortSequencesAreSilent) {
  flag_execution::Plan plan = plan_of(false);
  for (const std::int64_t S : {plan.model.nsa.l - 1, plan.model.nsa.l + 1}) {
    plan.S = S;
    const Found found = found_by([&](auto& x) { flag_checks::cover(Subject(std::make_shared<Seams>()), x, plan); });
    EXPECT_EQ(found.codes, Codes{}) << found.messages;
  }
}

// The cases of the standard level, with the model in use on a CPU.
class Standard : public testing::TestWithParam<const char*> {};
TEST_P(Standard, HealthyProductIsSilent) {
  const auto ran = tests::run_suite(flag_matrix(Subject(std::make_shared<Seams>())), tests::default_settings(),
                                    std::string("flag_matrix/") + GetParam(), harness::Level::standard);
  ASSERT_FALSE(ran.empty());
  for (const auto& one : ran) {
    EXPECT_EQ(one.exception, "") << one.id;
    EXPECT_EQ(one.context.grave_codes(), Codes{}) << one.id << ": " << one.context.findings[0].message;
    EXPECT_GT(one.context.checks, 0) << one.id;
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, Standard,
                         testing::Values("cover_array", "origins", "contracts", "after_construction",
                                         "cover[batch=dense", "cover[batch=packed"));

// -- after construction

TEST(AfterConstruction, CleanProductKeepsItsFlagsAndTheEnvironmentIsPutBack) {
  setenv("NSA_FORCE_BRANCH", "sel", 1);
  const Found found =
      found_by([](auto& x) { flag_checks::after_construction(Subject(std::make_shared<Seams>()), x, plan_of(false)); });
  EXPECT_EQ(found.codes, Codes{}) << found.messages;
  EXPECT_STREQ(std::getenv("NSA_FORCE_BRANCH"), "sel");
  EXPECT_EQ(std::getenv("NSA_FORCE_SEL_MASK"), nullptr);
  unsetenv("NSA_FORCE_BRANCH");
}

TEST(AfterConstruction, AModelThatReadsTheEnvironmentAgainIsFound) {
  const Subject subject(tests::on_ops([](nsa::Ops, const nsa::Call& call) {
    const nsa::EffectiveFlags now = nsa::resolve(nsa::read_environment());
    return nsa::assemble(nsa::route(now, call), now);
  }));
  const Found found = found_by([&](auto& x) { flag_checks::after_construction(subject, x, plan_of(false)); });
  EXPECT_EQ(found.codes, Codes{code(codes::kFlagsMovedAfterConstruction)}) << found.messages;
}

}  // namespace cover_test
