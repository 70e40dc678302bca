// The table of causes: without a flaw, and what it says of findings as they come.
#include "suites/causes/causes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/codes.hpp"
#include "suites/codes.hpp"

namespace suites {
namespace {

TEST(Causes, TheTableHasNoFlaw) {
  std::vector<std::string_view> known;
  const auto own = finding_codes();
  for (const harness::Code& code : own) known.push_back(code.id);
  for (const harness::Code& code : harness::own_codes()) known.push_back(code.id);
  const auto rules = causes();
  EXPECT_THAT(reports::flaws(rules, known), testing::IsEmpty());
}

// The likeliest cause of a run of one case with one finding, beside a case that passed.
reports::LikelyCause cause_of(std::string_view code, const std::string& where, reports::Json evidence,
                              const std::string& clean = "parity/op[backend=sdpa]") {
  reports::Case failed, passed;
  failed.id = where;
  failed.status = reports::Status::fail;
  failed.findings = {{std::string(code), reports::Severity::block, "numerics", "title", "message", "cause", "next",
                      "repro", std::move(evidence)}};
  passed.id = clean;
  passed.status = reports::Status::pass;
  reports::Run run;
  run.suites = {{"parity", "", {}, {failed, passed}, 0}};
  const auto rules = causes();
  reports::find_causes(run, rules);
  return run.causes.at(0);
}

TEST(Causes, StagesThatPartSideBySideTellWhatTheyShare) {
  const auto id = [](const std::string& stage, const std::vector<std::string>& beside) {
    return cause_of(codes::kOutputBudget, "parity/whole_step[S=1]",
                    {{"stage", stage}, {"beside", beside}, {"where", "everywhere"}})
        .id;
  };
  const std::string in = "layers.0.attention.";
  EXPECT_EQ(id(in + "gates", {"q", "cmp.k", "cmp.v"}), "norm-before-attention");
  EXPECT_EQ(id(in + "gates", {"q"}), "query-projection");
  EXPECT_EQ(id(in + "gates", {}), "gate");
  EXPECT_EQ(id(in + "q", {"cmp.k"}), "rope");
  EXPECT_EQ(id(in + "q", {}), "queries");
  EXPECT_EQ(id(in + "q", {"cmp.v"}), "stage") << "no rule knows it, and none says more than was seen";
  EXPECT_EQ(id("layers.1.mlp", {}), "mlp");
  EXPECT_EQ(id("layers.1", {}), "residual");
}

TEST(Causes, AnUpdateIsToldByTheMistakeThatExplainsIt) {
  const auto cause = cause_of(codes::kWrongUpdate, "training/real_text", {{"as_if", {"beta2 is 0.95"}}});
  EXPECT_EQ(cause.what, "The weights are updated as if beta2 is 0.95");
  EXPECT_EQ(cause_of(codes::kWrongUpdate, "training/real_text", {{"rates", {}}}).id, "update");
}

TEST(Causes, ASequenceTakenForAnotherIsNoLeakOfTheFuture) {
  const auto of = [](const std::string& where) {
    return cause_of(codes::kOutputBudget, "parity/op[op=attend_selected]",
                    {{"op", "attend_selected"}, {"output", "o"}, {"where", where}, {"value", 1.0}});
  };
  EXPECT_EQ(of("in sequence 1 alone, in rows from 8 on").id, "sequences-mixed");
  EXPECT_EQ(of("in sequence 1 alone, in row 8 alone").id, "op-values") << "one row may be of either by chance";
  EXPECT_EQ(of("in rows from 8 on").what, "attend_selected computes wrong values (in rows from 8 on)");
}

TEST(Causes, TheReferenceIsBlamedWhereItAloneParts) {
  const reports::Json wrong = {{"stage", "layers.0.attention.o"}, {"where", "everywhere"}, {"value", 1.0}};
  const std::string own = "parity/whole_step[S=2w+lsel+3]";
  EXPECT_EQ(cause_of(codes::kOutputBudget, "parity/whole_reference[S=2w+lsel+3]", wrong, own).id, "reference");
  const auto choice = cause_of(codes::kSelectionDiffers, "parity/whole_reference[S=documents]",
                               {{"as_if", "the block before were not forced"}}, own);
  EXPECT_EQ(choice.id, "reference-chooses-as-if");
}

TEST(Causes, DecodingIsToldByWhatCameBeforeIt) {
  const reports::Json parts = {{"stage", "layers.0.attention.win.o"}, {"where", "in rows from 80 on"}};
  const auto id = [](const reports::Json& evidence) {
    return cause_of(codes::kWaysDiffer, "parity/whole_decoding[model=subject]", evidence, "parity/whole_step[S=l]").id;
  };
  EXPECT_EQ(id(parts), "decoding-window");
  reports::Json prefilled = parts;
  prefilled["prefill"] = 68;
  EXPECT_EQ(id(prefilled), "decoding-after-a-prefill");
}

TEST(Causes, AGradientThatIsMissingIsNotCalledWrong) {
  const auto cause = cause_of(codes::kGraphBreak, "parity/whole_step[S=l]",
                              {{"parameter", "layers.0.attention.phi_k.position"}, {"model", "small"}, {"where", ""}});
  EXPECT_EQ(cause.id, "no-gradient-of-a-parameter");
}

TEST(Causes, ABatchThatComesTwiceIsAnEarlierCauseThanItsOrder) {
  EXPECT_EQ(cause_of(codes::kBatchTwice, "training/written_down[data=text]", {}).id, "batch-twice");
}

}  // namespace
}  // namespace suites
