// What every case leaves on record, whatever it does itself: routes, and NSA_STRICT_ASSERTS' fallbacks as findings.
#include "suites/records.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "nsa/call.hpp"
#include "suites/codes.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites {
namespace {

using harness::Json;
using tests::RecordingContext;

// What a case that does `work` has told when it ended.
RecordingContext told_by(const std::function<void(const Subject&)>& work) {
  static const harness::Settings settings = tests::default_settings();
  const Subject subject(std::make_shared<Seams>());
  harness::Suite suite;
  suite.name = "made_up";
  suite.cases = [=](const harness::Settings&) {
    return std::vector<harness::Case>{{.name = "case", .params = {}, .run = [=](harness::Context&) { work(subject); }}};
  };
  std::vector<tests::RunCase> ran = tests::run_suite(recorded(suite, subject), settings);
  return ran.at(0).context;
}

nsa::ModelConfig tiny() {
  nsa::ModelConfig model;
  model.dim = 16;
  model.n_layers = 1;
  model.n_heads = 4;
  model.n_kv_groups = 2;
  model.d_k = model.d_v = 8;
  model.nsa = {.l = 8, .d = 4, .l_sel = 16, .n_sel = 3, .w = 16};
  return model;
}

nsa::Call small_call() { return nsa::call_of(tiny(), 1, 40, nsa::Precision::fp32, at::kCPU); }
at::Tensor combine_of(const nsa::Ops& ops, const at::Tensor& o) {
  return ops.combine({at::rand({1, 40, 2, 3}), o, o, o});
}

at::Tensor tokens() { return at::arange(40).unsqueeze(0); }

// One pass of a model whose window gives an infinity in one place, below the guard of NSA_STRICT_ASSERTS.
void pass_with_a_fallback(const Subject& subject) {
  nsa::EffectiveFlags flags;
  flags.strict_asserts = true;
  Instance instance = subject.model({.config = tiny(), .flags = flags, .seed = 1});
  *instance.dispatcher = nsa::Dispatcher(flags, [](nsa::Ops table, const nsa::Call&) {
    table.replace(&nsa::Ops::attend_window, [inner = table.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::Attended result = inner(args);
      result.o = result.o.clone();
      result.o.detach()[0][7][3][5] = -INFINITY;
      return result;
    });
    return table;
  });
  instance.model->runtime->ops = instance.dispatcher->provider();
  for (int pass = 0; pass < 2; ++pass) (void)instance.model->forward(tokens());
}

TEST(Records, TheRoutesOfEveryModelAreAFact) {
  const RecordingContext told = told_by([](const Subject& subject) {
    for (const std::uint64_t seed : {1, 2})
      (void)subject.model({.config = tiny(), .flags = {}, .seed = seed}).model->forward(tokens());
  });
  const Json& routes = told.facts.at("routes");
  ASSERT_EQ(routes.size(), 11U) << routes.dump(1);
  for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(routes[i].at("calls"), 2) << routes[i];
  const std::string on_a_cpu = " refused: device is cpu; served: a CUDA device";
  const auto part = [](const char* name, const std::string& why, int calls) {
    return Json{{"op", name}, {"backend", "aten"}, {"variant", ""},
                {"why", why}, {"calls", calls},    {"kernels", Json::array()}};
  };
  EXPECT_EQ(routes[7], part("embedding", "joined" + on_a_cpu, 2));
  EXPECT_EQ(routes[8], part("norm", "cuda" + on_a_cpu, 2 * 3));
  EXPECT_EQ(routes[9], part("project", "cuda" + on_a_cpu, 2));
  EXPECT_EQ(routes[10], part("mlp", "joined" + on_a_cpu, 2));
  EXPECT_TRUE(told.findings.empty());
}

TEST(Records, TheRoutesOfTablesAreAFactToo) {
  const RecordingContext told = told_by([](const Subject& subject) {
    const at::Tensor o = at::rand({1, 40, 4, 8});
    (void)combine_of(subject.ops(nsa::EffectiveFlags{}, small_call()), o);
    (void)combine_of(subject.ops(nsa::Backend::reference, small_call()), o);
    (void)subject.ops(nsa::Backend::flash, small_call());  // nothing of it is called
  });
  const Json& routes = told.facts.at("routes");
  ASSERT_EQ(routes.size(), 2U) << routes.dump(1);
  EXPECT_EQ(routes[0], (Json{{"op", "combine"},
                             {"backend", "reference"},
                             {"variant", ""},
                             {"why", "this backend by itself"},
                             {"calls", 1},
                             {"kernels", Json::array()}}));
  EXPECT_EQ(routes[1].at("op"), "combine");
  EXPECT_EQ(routes[1].at("backend"), "sdpa");
}

TEST(Records, ACaseWithoutTheProductHasNoRoutes) {
  const RecordingContext told = told_by([](const Subject&) {});
  EXPECT_FALSE(told.facts.contains("routes"));
}

TEST(Records, AFallbackIsAFindingWithFunctionShapeAndPlace) {
  const RecordingContext told = told_by(pass_with_a_fallback);
  ASSERT_EQ(told.findings.size(), 1U);
  const auto& found = told.findings[0];
  EXPECT_EQ(found.code, codes::kStrictFallback);
  EXPECT_EQ(found.severity, reports::Severity::block);
  EXPECT_EQ(found.evidence, (Json{{"op", "attend_window"},
                                  {"times", 2},
                                  {"shape", {1, 40, 4, 8}},
                                  {"index", {0, 7, 3, 5}},
                                  {"value", reports::number(-INFINITY)}}));
  EXPECT_NE(found.message.find("attend_window gave -inf at [0, 7, 3, 5] of its output [1, 40, 4, 8]"),
            std::string::npos)
      << found.message;
}

TEST(Records, AFallbackIsFoundThoughTheCaseThrows) {
  const RecordingContext told = told_by([](const Subject& subject) {
    pass_with_a_fallback(subject);
    throw std::runtime_error("something else");
  });
  ASSERT_EQ(told.findings.size(), 1U);
  EXPECT_EQ(told.findings[0].code, codes::kStrictFallback);
  EXPECT_TRUE(told.facts.contains("routes"));
}

// A table that is asked for by flags is the product's: with this flag it falls back as a model's does.
TEST(Records, ATableObeysStrictAsserts) {
  nsa::EffectiveFlags flags;
  flags.strict_asserts = true;
  const Subject subject(std::make_shared<Seams>());
  const at::Tensor o = at::full({1, 40, 4, 8}, std::nan(""));
  (void)combine_of(subject.ops(flags, small_call()), o);
  const auto dispatchers = subject.take_dispatchers();
  ASSERT_EQ(dispatchers.size(), 1U);
  EXPECT_EQ(dispatchers[0]->strict_fallbacks().at("combine").times, 1);
}

}  // namespace
}  // namespace suites
