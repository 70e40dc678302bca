// LibTorch and the libraries beside it, the build, flags, and what is pinned.
#include <ATen/ATen.h>
#include <torch/version.h>

#include "nsa/call.hpp"
#include "suites/preflight/tests/preflight.hpp"

namespace suites::preflight_tests {
namespace {

TEST_F(Preflight, TorchOfThisBuildIsTheOneThatIsLoaded) {
  EXPECT_EQ(checks::torch_version_found(), TORCH_VERSION);
  checks::torch_version(context, TORCH_VERSION, checks::torch_version_found());
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.checks, 1);
}

TEST_F(Preflight, AnotherTorchIsFound) {
  checks::torch_version(context, "2.11.0", "2.10.1");
  ASSERT_EQ(all_codes(), Codes{code(codes::kTorchVersion)});
  EXPECT_NE(context.findings[0].message.find("2.10.1"), std::string::npos);
}

TEST_F(Preflight, StaleBuildIsFound) {
  context.provenance["build"] = {{"build_id", "aaaa"}, {"source_hash", "bbbb"}};
  checks::build_id(context, context.planned_provenance());
  EXPECT_EQ(all_codes(), Codes{code(codes::kBuildStale)});
}

TEST_F(Preflight, FreshBuildAndMissingSourcesAreSilent) {
  context.provenance["build"] = {{"build_id", "aaaa"}, {"source_hash", "aaaa"}};
  checks::build_id(context, context.planned_provenance());
  EXPECT_EQ(context.checks, 1);
  context.provenance["build"] = {{"build_id", "aaaa"}, {"source_hash", nullptr}};
  checks::build_id(context, context.planned_provenance());
  EXPECT_EQ(context.facts["build"]["compared"], false);
  EXPECT_TRUE(context.findings.empty());
  context.provenance["build"] = harness::Json::object();
  EXPECT_THROW(checks::build_id(context, context.planned_provenance()), std::runtime_error);
}

TEST_F(Preflight, AFlagThatWasSetAfterTheRunBeganIsFound) {
  context.provenance["flags"]["set"] = {{"NSA_USE_FA2", "1"}, {"NSA_USE_CUDA", "0"}};
  checks::flags(context, {{"NSA_USE_FA2", "1"}, {"NSA_USE_CUDA", "0"}});
  EXPECT_TRUE(context.findings.empty());
  checks::flags(context, {{"NSA_USE_FA2", "0"}, {"NSA_FORCE_PARITY", "1"}});
  ASSERT_EQ(all_codes(), Codes{code(codes::kUnexpectedFlags)});
  for (const char* text :
       {"NSA_USE_FA2 is 0 in the worker, and was 1", "NSA_FORCE_PARITY is 1", "NSA_USE_CUDA is unset"})
    EXPECT_NE(context.findings[0].message.find(text), std::string::npos) << context.findings[0].message;
}

TEST_F(Preflight, UnknownAndRetiredFlagsAreTold) {
  const nsa::Environment set = {{"NSA_USE_FA", "1"}, {"NSA_FWE_DOC_BATCH", "64"}, {"NSA_USE_FA2", "1"}};
  context.provenance["flags"]["set"] = set;
  checks::flags(context, set);
  ASSERT_EQ(context.findings.size(), 2U);
  for (const auto& f : context.findings) {
    if (f.code == codes::kUnknownFlag) {
      EXPECT_EQ(f.severity, reports::Severity::warn);
      EXPECT_NE(f.message.find("did you mean NSA_USE_FA2?"), std::string::npos) << f.message;
    } else {
      EXPECT_EQ(f.code, codes::kRetiredFlag);
      EXPECT_EQ(f.severity, reports::Severity::info);
    }
  }
}

nsa::Call step_on(int major, int minor, nsa::Precision precision = nsa::Precision::bf16) {
  nsa::Call call = nsa::call_of({}, 4, 512, precision, at::kCPU, /*training=*/true);
  call.cuda = major > 0;
  call.cuda_major = major;
  call.cuda_minor = minor;
  return call;
}

TEST_F(Preflight, AFlagThatCannotBeObeyedHereIsFoundWithTheReason) {
  struct Asked {
    const char *name, *op, *why;
    nsa::Call step;
  };
  nsa::Call long_step = step_on(0, 0);
  long_step.S = 1 << 16;  // a gathered selection would hold more than its budget
  for (const auto& [name, op, why, step] :
       {Asked{"NSA_USE_FA2", "attend_window", "flash refused: device is cpu", step_on(0, 0)},
        {"NSA_USE_FA2_CMP", "attend_compressed", "precision is fp32", step_on(9, 0, nsa::Precision::fp32)},
        {"NSA_USE_CUDA", "attend_selected", "cuda refused: device is cpu", step_on(0, 0)},
        {"NSA_USE_SEL_PACK", "attend_selected", "gathering refused: it would hold", long_step}}) {
    RecordingContext own(settings);
    checks::flags_obeyed(own, nsa::resolve({{name, "1"}}), step);
    ASSERT_EQ(own.grave_codes(), Codes{code(codes::kFlagNotObeyed)}) << name;
    const auto& found = own.findings[0];
    EXPECT_EQ(found.evidence["flag"], std::string(name) + "=1");
    EXPECT_EQ(found.evidence["op"], op) << name;
    EXPECT_NE(found.message.find(why), std::string::npos) << found.message;
  }
}

TEST_F(Preflight, FlagsThatAreObeyedAndDefaultsAreSilent) {
  for (const nsa::Environment& set : std::vector<nsa::Environment>{{},
                                                                   {{"NSA_USE_FA2", "1"}},
                                                                   {{"NSA_USE_CUDA", "1"}, {"NSA_USE_SEL_PACK", "1"}},
                                                                   {{"NSA_USE_CUDA", "1"}, {"NSA_FORCE_SEL_MASK", "1"}},
                                                                   {{"NSA_USE_FA2", "1"}, {"NSA_FORCE_PARITY", "1"}}})
    checks::flags_obeyed(context, nsa::resolve(set), step_on(9, 0));
  checks::flags_obeyed(context, nsa::resolve({}), step_on(0, 0));
  checks::flags_obeyed(context, nsa::resolve({{"NSA_USE_SEL_PACK", "1"}}), step_on(0, 0));
  EXPECT_TRUE(context.findings.empty()) << context.findings[0].message;
  EXPECT_EQ(context.checks, 2 + 2 + 1);
}

TEST_F(Preflight, AGpuThatTheBuildHoldsNoKernelsForIsFound) {
  for (const auto& [major, minor] : {std::pair{12, 0}, {10, 3}, {7, 5}}) {
    RecordingContext own(settings);
    checks::kernels(own, nsa::resolve({}), step_on(major, minor), "8.0 9.0a");
    EXPECT_EQ(own.grave_codes(), Codes{code(codes::kNoKernels)}) << major;
    EXPECT_NE(own.findings[0].message.find(std::to_string(major) + "." + std::to_string(minor)), std::string::npos);
  }
  checks::kernels(context, nsa::resolve({}), step_on(9, 0), "8.0 9.0a");
  checks::kernels(context, nsa::resolve({}), step_on(12, 0), "8.0 9.0a+PTX 12.0");
  EXPECT_EQ(context.checks, 2);
  checks::kernels(context, nsa::resolve({{"NSA_USE_CUDA", "0"}}), step_on(12, 0), "8.0 9.0a");
  EXPECT_EQ(context.checks, 2) << "the flags want none";
  EXPECT_TRUE(context.findings.empty());
}

TEST_F(Preflight, AnotherLibraryIsFoundAndTheOnesHereAreRight) {
  checks::libraries(context, checks::library_versions());
  EXPECT_TRUE(context.findings.empty());
  EXPECT_GE(context.checks, 2);
  checks::libraries(context,
                    {{"CUDA runtime", "13.0", "12.8", true}, {"cuDNN", "9.1", "9.7", true}, {"x", "1", "", false}});
  ASSERT_EQ(context.findings.size(), 1U);
  EXPECT_EQ(context.findings[0].code, codes::kTorchVersion);
  EXPECT_NE(context.findings[0].message.find("CUDA runtime 12.8 is loaded"), std::string::npos);
}

TEST_F(Preflight, VariablesAndThreadsComeFromTheProvenance) {
  context.provenance["environment"] = {{"CUDA_LAUNCH_BLOCKING", "1"}, {"OMP_NUM_THREADS", "4096"}};
  checks::variables(context);
  checks::threads(context);
  EXPECT_EQ(all_codes(), (Codes{code(codes::kHarmfulVariable), code(codes::kThreadSettings)}));
}

TEST_F(Preflight, PinsAreJudgedAndCasesExistOnlyForWhatIsExpected) {
  const auto names = [&] {
    std::set<std::string> found;
    for (const harness::Case& c : preflight(subject()).cases(settings)) found.insert(c.name);
    return found;
  };
  EXPECT_FALSE(names().contains("pins") || names().contains("fix") || names().contains("train_folder"));
  settings.set("preflight.expect_environment", "[NSA_FORCE_SEL_MASK=1]", "test");
  settings.set("preflight.expect_commit", "0123abcd", "test");
  settings.set("preflight.train_folder", folder.string(), "test");
  EXPECT_TRUE(names().contains("pins") && names().contains("fix") && names().contains("train_folder"));
  checks::pins(context);
  EXPECT_EQ(all_codes(), Codes{code(codes::kUnexpectedFlags)});
}

TEST_F(Preflight, AProgramWithoutTheFixIsFound) {
  settings.set("preflight.expect_commit", "0123abcd0123abcd", "test");
  context.provenance["build"] = {{"build_id", "a"}, {"source_hash", "a"}};
  context.provenance["source"] = {{"folder", folder.string()}};
  checks::fix(context, context.planned_provenance());
  EXPECT_EQ(all_codes(), Codes{code(codes::kFixMissing)});
}

}  // namespace
}  // namespace suites::preflight_tests
