// Our own kernels, on the processor, as a whole: the case that looks at attention as it trains is silent on them, and
// not on what they may do wrong.
#include <gtest/gtest.h>

#include "nsa/cuda/cuda.hpp"
#include "nsa/kernels/params.hpp"
#include "suites/faults/attend.hpp"
#include "suites/parity/cases.hpp"
#include "suites/parity/rounded_once.hpp"
#include "suites/registry.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::parity_cases {
namespace {

std::shared_ptr<Seams> kernels() {
  auto seams = std::make_shared<Seams>();
  seams->ops.push_back([](const nsa::Ops&, const nsa::Call&) { return nsa::cuda::ops(); });
  seams->configuration.push_back([](nsa::Config& config) { config.model.d_k = config.model.d_v = 32; });
  return seams;
}

tests::RecordingContext run(const std::shared_ptr<Seams>& seams, std::int64_t S) {
  static const harness::Settings settings = tests::default_settings(parity);
  tests::RecordingContext context(settings);
  attention_at(context, Subject(seams), {.S = S, .precision = nsa::Precision::bf16});
  return context;
}

TEST(EmulatedAttention, IsSilentOnTheKernels) {
  ASSERT_TRUE(nsa::kernels::is_emulated()) << "linked with the kernels themselves";
  for (const std::int64_t S : {1, 8, 33, 130}) {
    const auto context = run(kernels(), S);
    EXPECT_TRUE(context.findings.empty()) << S << ": " << context.findings.front().message;
    EXPECT_GT(context.checks, 10) << S;
  }
}

// Learned compressed keys have much in common, and the sum over them cancels; of two tokens one may have nearly all
// weight.
TEST(EmulatedAttention, IsSilentWhereARowsTermsCancel) {
  for (const std::int64_t S : {2, 66}) {
    auto seams = std::make_shared<Seams>();
    seams->ops.push_back([](const nsa::Ops&, const nsa::Call&) { return nsa::cuda::ops(); });
    seams->configuration.push_back([](nsa::Config& config) {
      config.model.d_k = 192;
      config.model.d_v = 128;
      config.model.n_heads = 32;
      config.model.n_kv_groups = 2;
      config.model.phi = nsa::Phi::mlp;
      config.model.nsa = {};
    });
    const auto context = run(seams, S);
    for (const auto& finding : context.findings) ADD_FAILURE() << S << ": " << finding.message;
  }
}

TEST(EmulatedAttention, TwoPercentIsFoundInBf16Too) {
  for (const std::string name : {"attend-off", "attend-dq-off", "attend-dk-win-off", "attend-dk-sel-group-off"}) {
    const auto seams = kernels();
    for (const harness::Fault& fault : attend_faults(seams))
      if (fault.name == name) fault.plant({});
    EXPECT_FALSE(run(seams, 130).findings.empty()) << name;
  }
}

// Norm, projections, gate, MLP, sum of the branches and compression by the kernels, each way.
TEST(EmulatedParts, AreRoundedOnce) {
  for (const std::int64_t heads : {4, 26}) {
    nsa::ModelConfig model;
    model.dim = 128;
    model.n_heads = heads;
    model.n_kv_groups = 2;
    model.d_k = model.d_v = 32;
    model.nsa = {.l = 8, .d = 4, .l_sel = 16, .n_sel = 4, .w = 32};
    const harness::Settings settings{{}};
    tests::RecordingContext context(settings);
    judge_rounding(context, model, /*tokens=*/205, at::kCPU, parts_of_product(nsa::cuda::ops()));
    for (const auto& finding : context.findings) ADD_FAILURE() << finding.message;
  }
}

}  // namespace
}  // namespace suites::parity_cases
