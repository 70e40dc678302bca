#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "nsa/attend.hpp"
#include "suites/codes.hpp"
#include "suites/flag_matrix/checks.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace {

using namespace suites;
using tests::Codes;

flag_execution::Plan tiny_plan() {
  flag_execution::Plan plan;
  plan.model.n_heads = 4;
  plan.model.n_kv_groups = 2;
  plan.model.d_k = plan.model.d_v = 16;
  plan.model.nsa = {.l = 8, .d = 4, .l_sel = 16, .n_sel = 3, .w = 16};
  plan.S = 35;
  plan.seed = 5;
  return plan;
}

struct Found {
  Codes codes;
  std::vector<std::string> messages;
  int checks = 0;
};
Found contracts_of(tests::OpsChange change = nullptr) {
  const harness::Settings settings = tests::default_settings();
  tests::RecordingContext context(settings);
  flag_checks::contracts(Subject(tests::on_ops(std::move(change))), context, tiny_plan());
  Found found{context.grave_codes(), {}, context.checks};
  for (const auto& f : context.findings) found.messages.push_back(f.message);
  return found;
}
const Codes kNotEnforced = {std::string(codes::kContractNotEnforced)};

std::string all(const std::vector<std::string>& messages) {
  std::string text;
  for (const std::string& m : messages) text += m + "\n";
  return text;
}

TEST(Contracts, CleanProductRefusesEverythingBeforeItRuns) {
  const Found found = contracts_of();
  EXPECT_EQ(found.codes, Codes{}) << all(found.messages);
  EXPECT_GT(found.checks, 150);
}

TEST(Contracts, ALaunchBeforeTheCheckIsFound) {
  const Found found = contracts_of([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      if (args.q.defined()) (void)args.q.add(1);
      return inner(args);
    });
    return ops;
  });
  EXPECT_EQ(found.codes, kNotEnforced);
  EXPECT_NE(all(found.messages).find("aten::add"), std::string::npos) << all(found.messages);
}

// The last part's arguments are looked at when the first parts have run.
TEST(Contracts, AnAttentionThatChecksPartByPartIsFound) {
  const Found found = contracts_of([](nsa::Ops ops, const nsa::Call&) {
    nsa::Ops parts = ops;
    ops.replace(&nsa::Ops::attend, [parts](const nsa::AttendArgs& args) { return nsa::attend_in_parts(parts, args); });
    return ops;
  });
  EXPECT_EQ(found.codes, kNotEnforced);
  EXPECT_NE(all(found.messages).find("attend: v_win undefined"), std::string::npos) << all(found.messages);
}

TEST(Contracts, SilentRepairOfOffsetsIsFound) {
  const Found found = contracts_of([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](nsa::AttendWindowArgs args) {
      if (args.cu_seqlens && args.cu_seqlens->defined() && args.cu_seqlens->scalar_type() == at::kLong)
        args.cu_seqlens = args.cu_seqlens->to(at::kInt);
      return inner(args);
    });
    return ops;
  });
  EXPECT_EQ(found.codes, kNotEnforced);
  EXPECT_NE(all(found.messages).find("window: cu_seqlens int64: the call was accepted"), std::string::npos)
      << all(found.messages);
}

TEST(Contracts, ARefusalThatNamesNothingIsFound) {
  const Found found = contracts_of([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_selected, [inner = ops.attend_selected](const nsa::AttendSelectedArgs& args) {
      try {
        return inner(args);
      } catch (const nsa::ContractError&) {
        throw nsa::ContractError("bad argument");
      }
    });
    return ops;
  });
  EXPECT_EQ(found.codes, kNotEnforced);
  EXPECT_NE(all(found.messages).find("does not name"), std::string::npos) << all(found.messages);
}

TEST(Contracts, AProductThatRefusesEverythingIsFound) {
  const Found found = contracts_of([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_compressed,
                [](const nsa::AttendCompressedArgs&) -> nsa::Attended { throw nsa::ContractError("no"); });
    return ops;
  });
  EXPECT_NE(all(found.messages).find("refused sound arguments"), std::string::npos) << all(found.messages);
}

TEST(Contracts, StridesThatChangeTheResultAreFound) {
  const Found found = contracts_of([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](nsa::AttendWindowArgs args) {
      if (args.v.defined() && args.v.dim() == 4 && args.v.stride(-1) != 1)
        args.v = args.v.transpose(1, 3).contiguous().view(args.v.sizes());  // the memory read as if it were dense
      return inner(args);
    });
    return ops;
  });
  EXPECT_NE(all(found.messages).find("strides change nothing"), std::string::npos) << all(found.messages);
}

}  // namespace
