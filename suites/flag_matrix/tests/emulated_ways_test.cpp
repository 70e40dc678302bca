// The layer's projections by our own kernels, on the processor: then the attentions' inputs are slices of one product,
// and flags that switch the kernels off lay them by themselves.
#include <gtest/gtest.h>

#include "nsa/kernels/params.hpp"
#include "suites/flag_matrix/tests/tiny_plan.hpp"
#include "suites/flag_matrix/witness.hpp"

namespace suites::flag_witness {
namespace {

flag_execution::Plan plan() {
  flag_execution::Plan plan = flag_execution::tiny_plan(64, 32);  // a width that the kernels serve
  plan.precision = nsa::Precision::bf16;
  return plan;
}

bool are_slices(const flag_execution::Execution& seen) {
  const at::Tensor& v = seen.inputs.window.v;
  return v.stride(1) > v.size(2) * v.size(3);
}

TEST(EmulatedWays, AreKnownHoweverTheirInputsLie) {
  ASSERT_TRUE(nsa::kernels::is_emulated()) << "linked with the kernels themselves";
  const Subject subject(std::make_shared<Seams>());
  for (const bool training : {false, true}) {
    const Yardstick yardstick = measure(plan(), training);
    ASSERT_TRUE(are_slices(yardstick.plain));
    EXPECT_TRUE(blind_spots(yardstick).empty()) << blind_spots(yardstick).front();
    for (const nsa::Environment& environment :
         {nsa::Environment{}, {{"NSA_USE_CUDA", "0"}}, {{"NSA_FUSED_PROJECT", "0"}}, {{"NSA_FORCE_SEL_MASK", "1"}}}) {
      const auto seen = flag_execution::execute(subject, plan(), nsa::resolve(environment), training);
      const bool by_flag = environment.contains("NSA_USE_CUDA") || environment.contains("NSA_FUSED_PROJECT");
      EXPECT_EQ(are_slices(seen), !by_flag);
      for (const Disagreement& d : judge(environment, yardstick, seen, plan()))
        EXPECT_FALSE(d.evidence.contains("op")) << d.what;  // what is said of an attention's way
    }
  }
}

}  // namespace
}  // namespace suites::flag_witness
