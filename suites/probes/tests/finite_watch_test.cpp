#include "suites/probes/finite_watch.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cmath>
#include <limits>

#include "nsa/cuda/cuda.hpp"
#include "nsa/kernels/params.hpp"
#include "nsa/train/graph_step.hpp"
#include "suites/codes.hpp"
#include "suites/probes/finite_check.hpp"
#include "suites/probes/op_trace.hpp"
#include "suites/probes/tests/small_model.hpp"
#include "suites/subject.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::probes {
namespace finite_watch_test {

using namespace small;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

at::Device device() { return at::hasCUDA() ? at::kCUDA : at::kCPU; }

at::Tensor put(const at::Tensor& t, std::int64_t row, double value) {
  at::Tensor mask = at::zeros(t.sizes(), at::TensorOptions(at::kBool));
  mask.select(1, row).fill_(true);
  return at::where(mask, at::full({}, value, t.options()), t);
}

// The selected branch of the second layer holds `value` in row 17.
Change bad_selected_row(double value) {
  return [value, layer = std::make_shared<int>(0)](nsa::Ops ops, const nsa::Call&) {
    const bool second = (*layer)++ % 2 == 1;
    ops.replace(&nsa::Ops::attend_selected,
                [value, second, inner = ops.attend_selected](const nsa::AttendSelectedArgs& args) {
                  nsa::Attended out = inner(args);
                  if (second) out.o = put(out.o, 17, value);
                  return out;
                });
    return ops;
  };
}

// Row 11 of the gradient that arrives at the window's output is NaN; the forward pass is untouched.
nsa::Ops bad_window_gradient(nsa::Ops ops, const nsa::Call&) {
  ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
    nsa::Attended out = inner(args);
    if (out.o.requires_grad()) {
      out.o.register_hook([](const at::Tensor& gradient) { return put(gradient, 11, kNan); });
    }
    return out;
  });
  return ops;
}

TEST(FiniteWatch, IsSilentOnAFiniteStepAndKnowsItsPeaks) {
  Instance instance = model_with(nullptr);
  FiniteWatch watch;
  const Observing observing(*instance.model->runtime, watch.observer());
  EXPECT_FALSE(watch.read({}).has_value());  // nothing seen yet
  EXPECT_TRUE(watch.peaks().empty());
  instance.model->loss(tokens()).backward();
  watch.look_at_gradients(*instance.model);
  EXPECT_FALSE(watch.read({small_model().nsa, kS, {}}).has_value());

  int stages = 0, gradients = 0, parameters = 0;
  for (const auto& peak : watch.peaks()) {
    EXPECT_TRUE(std::isfinite(peak.largest)) << peak.name;
    ++(peak.parameter ? parameters : peak.backward ? gradients : stages);
  }
  EXPECT_EQ(stages, 2 * 11 + 4);  // of a layer, without the blocks, which are integers; embedding, norm, logits, loss
  EXPECT_EQ(gradients, stages);
  EXPECT_EQ(parameters, static_cast<int>(instance.model->parameters().size()));
  watch.begin();
  EXPECT_TRUE(watch.peaks().empty());
}

TEST(FiniteWatch, NamesStageLayerBranchRowAndKeysOfAForwardValue) {
  for (const double value : {kNan, kInf, -kInf}) {
    Instance instance = model_with(bad_selected_row(value));
    const FiniteStep step = finite_step(*instance.model, tokens(), Pass::forward_and_backward);
    EXPECT_FALSE(step.finite);
    ASSERT_TRUE(step.sighted.has_value());
    EXPECT_FALSE(step.sighted->backward);
    EXPECT_EQ(step.sighted->stage.name, "layers.1.attention.sel.o");
    EXPECT_EQ(step.sighted->stage.layer, 1);
    EXPECT_EQ(step.sighted->stage.branch, "sel");
    EXPECT_EQ(step.sighted->rows, std::vector<std::int64_t>{17});
    EXPECT_EQ(step.sighted->allowed_keys, 2 * 8 + 2);
    EXPECT_EQ(step.sighted->value, std::isnan(value) ? "NaN" : "Infinity");
    EXPECT_EQ(step.sighted->describe().find("operation"), std::string::npos);  // it did not look for one
  }
}

TEST(FiniteWatch, NamesTheStageWhoseGradientIsBad) {
  Instance instance = model_with(bad_window_gradient);
  const FiniteStep step = finite_step(*instance.model, tokens(), Pass::forward_and_backward);
  EXPECT_TRUE(step.forward_finite);
  EXPECT_FALSE(step.parameter.empty());
  EXPECT_FALSE(step.hidden());
  ASSERT_TRUE(step.sighted.has_value());
  EXPECT_TRUE(step.sighted->backward);
  EXPECT_EQ(step.sighted->stage.name, "layers.1.attention.win.o");  // the last layer's comes first
  EXPECT_EQ(step.sighted->rows, std::vector<std::int64_t>{11});
  EXPECT_EQ(step.sighted->allowed_keys, 9);
  const auto found = diagnose(*instance.model, tokens(), Pass::forward_and_backward, step);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->code, codes::kNonFiniteBackward);
  EXPECT_EQ(found->evidence["branch"], "win");
  EXPECT_EQ(found->evidence["row"], 11);
}

TEST(FiniteWatch, NamesAParameterWhenNoStageIsBad) {
  Instance instance = model_with(nullptr);
  instance.model->head->weight.register_hook([](const at::Tensor& gradient) { return gradient * kInf; });
  const FiniteStep step = finite_step(*instance.model, tokens(), Pass::forward_and_backward);
  ASSERT_TRUE(step.sighted.has_value());
  EXPECT_TRUE(step.sighted->backward);
  EXPECT_EQ(step.sighted->stage.name, "");
  EXPECT_EQ(step.sighted->parameter, "head.weight");
  EXPECT_EQ(step.parameter, "head.weight");
  EXPECT_NE(step.sighted->describe().find("head.weight"), std::string::npos);
  EXPECT_TRUE(finite_step(*instance.model, tokens(), Pass::forward).finite);
}

// Without a call after the backward pass, and again in the next step.
TEST(FiniteWatch, FollowsParametersToTheEndOfABackwardPass) {
  Instance instance = model_with(nullptr);
  bool spoilt = true;
  instance.model->head->weight.register_hook(
      [&](const at::Tensor& gradient) { return spoilt ? gradient * kInf : gradient; });
  FiniteWatch watch;
  watch.follow(*instance.model);
  const Observing observing(*instance.model->runtime, watch.observer());
  const auto seen = [&] {
    watch.begin();
    instance.model->zero_grad();
    instance.model->loss(tokens()).backward();
    return watch.read({instance.model->config.nsa, kS, {}});
  };
  const auto found = seen();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->parameter, "head.weight");
  spoilt = false;
  EXPECT_FALSE(seen().has_value());
}

TEST(FiniteWatch, TellsEmptyRowsFromOthers) {
  Instance instance = model_with([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_compressed, [inner = ops.attend_compressed](const nsa::AttendCompressedArgs& args) {
      nsa::Attended out = inner(args);
      for (std::int64_t t = 0; t < args.geometry.l - 1; ++t) out.o = put(out.o, t, kNan);
      return out;
    });
    return ops;
  });
  const FiniteStep step = finite_step(*instance.model, tokens(), Pass::forward);
  ASSERT_TRUE(step.sighted.has_value());
  EXPECT_TRUE(step.sighted->only_empty_rows);
  EXPECT_EQ(step.sighted->allowed_keys, 0);
  EXPECT_EQ(code_of(*step.sighted), codes::kEmptyRowNan);
}

TEST(FiniteWatch, CountsRowsFromTheDocumentOfAPackedBatch) {
  Instance instance = model_with(bad_selected_row(kNan));
  const StepInput packed(tokens(), at::tensor(std::vector<int>{0, 0, 15, 16, 42}, at::kInt));
  const FiniteStep step = finite_step(*instance.model, packed, Pass::forward);
  ASSERT_TRUE(step.sighted.has_value());
  EXPECT_EQ(step.sighted->row, 17);
  EXPECT_EQ(step.sighted->document, 3);
  EXPECT_EQ(step.sighted->row_in_document, 1);
  EXPECT_EQ(step.sighted->allowed_keys, 2);
  const auto found = diagnose(*instance.model, packed, Pass::forward, step);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->evidence["row_in_document"], 1);
  EXPECT_EQ(found->evidence["allowed_keys"], 2);
}

TEST(FiniteWatch, SeesWhatIsWipedAwayLater) {
  Instance instance = model_with([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::Attended out = inner(args);
      out.o = put(out.o, 5, kNan);
      return out;
    });
    ops.replace(&nsa::Ops::combine, [inner = ops.combine](const nsa::CombineArgs& args) {
      nsa::CombineArgs wiped = args;
      wiped.o_win = at::nan_to_num(args.o_win);
      return inner(wiped);
    });
    return ops;
  });
  const FiniteStep step = finite_step(*instance.model, tokens(), Pass::forward_and_backward);
  EXPECT_TRUE(step.forward_finite);
  EXPECT_TRUE(step.parameter.empty());
  EXPECT_TRUE(step.hidden());
  static const harness::Settings settings = tests::default_settings();
  tests::RecordingContext context(settings);
  EXPECT_FALSE(expect_finite_step(context, "finite", *instance.model, tokens(), Pass::forward_and_backward));
  ASSERT_EQ(context.findings.size(), 1U);
  EXPECT_EQ(context.findings[0].code, codes::kHiddenNonFinite);
  EXPECT_EQ(context.findings[0].evidence["stage"], "layers.0.attention.win.o");
  EXPECT_EQ(context.findings[0].evidence["row"], 5);
}

TEST(FiniteWatch, TellsWhatIsSeenOnce) {
  const auto calls = std::make_shared<int>(0);
  Instance instance = model_with([calls](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [calls, inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::Attended out = inner(args);
      if ((*calls)++ == 0) out.o = put(out.o, 5, kNan);
      return out;
    });
    return ops;
  });
  static const harness::Settings settings = tests::default_settings();
  tests::RecordingContext context(settings);
  EXPECT_FALSE(expect_finite_step(context, "finite", *instance.model, tokens(), Pass::forward));
  ASSERT_EQ(context.findings.size(), 1U);
  EXPECT_EQ(context.findings[0].code, codes::kNonFiniteOnce);
  EXPECT_EQ(context.findings[0].evidence["stage"], "layers.0.attention.win.o");
}

TEST(FiniteWatch, NeverReadsAValueOnTheHostWhileTheStepRuns) {
  Instance instance = model_with(nullptr);
  const at::Tensor input = tokens();
  const auto host_reads = [&](bool watched) {
    FiniteWatch watch;
    std::optional<Observing> observing;
    if (watched) observing.emplace(*instance.model->runtime, watch.observer());
    const OpTrace trace;
    instance.model->loss(input).backward();
    if (watched) watch.look_at_gradients(*instance.model);
    std::int64_t reads = 0;
    for (const auto& [op, count] : trace.all()) {
      for (const char* reading : {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal"}) {
        if (op.starts_with(reading)) reads += count;
      }
    }
    return reads;
  };
  EXPECT_EQ(host_reads(true), host_reads(false));
}

TEST(FiniteWatch, ForgetsGradientsOfAnOlderStep) {
  FiniteWatch watch;
  at::Tensor x = at::ones({1, 4, 2, 3}).requires_grad_();
  const at::Tensor y = x * 2;
  watch.observe("layers.0.attention.win.o", y);
  watch.begin();
  (y * kNan).sum().backward();
  EXPECT_TRUE(watch.peaks().empty());
  EXPECT_FALSE(watch.read({}).has_value());
}

TEST(FiniteWatch, LetsALogSumExpBeMinusInfinityAndNothingElse) {
  const auto seen = [](const char* name, double value) {
    FiniteWatch watch;
    watch.observe(name, at::full({1, 2, 4}, value));
    return watch.read({{}, 4, {}}).has_value();
  };
  EXPECT_FALSE(seen("layers.0.attention.cmp.lse", -kInf));
  EXPECT_TRUE(seen("layers.0.attention.cmp.lse", kInf));
  EXPECT_TRUE(seen("layers.0.attention.cmp.lse", kNan));
  EXPECT_TRUE(seen("layers.0.mlp", -kInf));
}

TEST(FiniteWatch, LeavesTheObserverBeforeItInPlace) {
  Instance instance = model_with(nullptr);
  int seen = 0;
  instance.model->runtime->observe = [&](std::string_view, const at::Tensor&) { ++seen; };
  (void)finite_step(*instance.model, tokens(), Pass::forward);
  const int during = seen;
  EXPECT_GT(during, 0);
  (void)instance.model->loss(tokens());
  EXPECT_EQ(seen, 2 * during);
}

// A NaN that a write in place wipes away before a launch of many stages would have looked at it.
TEST(FiniteWatch, SeesWhatIsWrittenOverLater) {
  Instance instance = model_with([](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::Attended out = inner(args);
      out.o = put(out.o, 5, kNan);
      return out;
    });
    ops.replace(&nsa::Ops::combine, [inner = ops.combine](const nsa::CombineArgs& args) {
      (void)args.o_win.detach().nan_to_num_();
      return inner(args);
    });
    return ops;
  });
  static const harness::Settings settings = tests::default_settings();
  tests::RecordingContext context(settings);
  EXPECT_FALSE(expect_finite_step(context, "finite", *instance.model, tokens(), Pass::forward));
  ASSERT_EQ(context.findings.size(), 1U);
  EXPECT_EQ(context.findings[0].code, codes::kHiddenNonFinite);
  EXPECT_EQ(context.findings[0].evidence["stage"], "layers.0.attention.win.o");
  EXPECT_EQ(context.findings[0].evidence["row"], 5);
}

// A gradient, by a hook that comes after the watch's.
TEST(FiniteWatch, GivesNoWrongAnswerAboutAGradientThatIsWrittenOver) {
  const auto seen = [](Look look) {
    FiniteWatch watch(look);
    const at::Tensor x = at::ones({1, 4, 2, 3}, at::TensorOptions(device())).requires_grad_(), y = x * 2;
    watch.observe("layers.0.attention.win.o", y);
    y.register_hook([](const at::Tensor& gradient) { (void)gradient.detach().nan_to_num_(); });
    (y * kNan).sum().backward();
    return watch.read({{}, 4, {}}).has_value();
  };
  EXPECT_TRUE(seen(Look::at_once));
  try {
    EXPECT_TRUE(seen(Look::in_batches));
  } catch (const StageOverwritten& error) {
    EXPECT_NE(std::string(error.what()).find("layers.0.attention.win.o"), std::string::npos) << error.what();
  }
}

// Widths that our own kernels serve.
Instance served_model() {
  nsa::ModelConfig model = small_model();
  model.dim = 64;
  model.n_heads = 4;
  model.n_kv_groups = 2;
  model.d_k = model.d_v = 32;
  auto seams = std::make_shared<Seams>();
  if (at::hasCUDA() || nsa::kernels::is_emulated())
    seams->ops.push_back([](const nsa::Ops&, const nsa::Call&) { return nsa::cuda::ops(); });
  return Subject(seams).model(
      {.config = model, .flags = {}, .precision = nsa::Precision::bf16, .device = device(), .seed = 5});
}

// Autograd adds up gradients in place, and kernels of ours write into each other's: not into what
// waits to be looked at.
TEST(FiniteWatch, SeesInBatchesWhatItSeesAtOnce) {
  for (const bool recompute : {false, true}) {
    Instance instance = served_model();
    instance.model->runtime->recompute = recompute;
    FiniteWatch in_batches, at_once(Look::at_once);
    {
      const Observing one(*instance.model->runtime, in_batches.observer());
      const Observing other(*instance.model->runtime, at_once.observer());
      instance.model->loss(tokens().to(device())).backward();
    }
    in_batches.look_at_gradients(*instance.model);
    at_once.look_at_gradients(*instance.model);
    const auto peaks = in_batches.peaks(), expected = at_once.peaks();
    ASSERT_EQ(peaks.size(), expected.size());
    EXPECT_GT(peaks.size(), 50U);
    for (std::size_t i = 0; i < peaks.size(); ++i) {
      EXPECT_EQ(peaks[i].name, expected[i].name);
      EXPECT_EQ(peaks[i].backward, expected[i].backward);
      EXPECT_EQ(peaks[i].largest, expected[i].largest) << peaks[i].name << (peaks[i].backward ? ", gradient" : "");
    }
  }
}

void tells_of_each_replay(bool followed) {
  Instance instance = served_model();
  nsa::TrainConfig train;
  train.precision = nsa::Precision::bf16;
  train.batch_size = 1;
  train.seq_len = kS;
  train.accumulate_grad_batches = 2;
  nsa::train::AdamW optimizer(*instance.model, 0.01, /*master_weights=*/false, /*runtime=*/nullptr);
  nsa::train::GraphStep step(instance.model, train, optimizer);
  const at::Tensor spoiler = at::zeros({}, at::TensorOptions(device()).dtype(at::kBFloat16));  // read by each replay
  instance.model->runtime->observe = [&](std::string_view name, const at::Tensor& value) {
    if (name == "layers.0.mlp") value.register_hook([&](const at::Tensor& gradient) { return gradient + spoiler; });
  };
  FiniteWatch watch;
  const Observing observing(*instance.model->runtime, watch.observer());
  const auto seen = [&] {
    if (step.replays() == 0) watch.begin();
    (void)step.run({{tokens(), {}}, {tokens(), {}}}, 1e-4, [](std::string_view) {});
    if (!followed) watch.look_at_gradients(*instance.model);
    return watch.read({instance.model->config.nsa, kS, {}});
  };
  if (followed) watch.follow(*instance.model);
  for (std::int64_t i = 0; i <= nsa::train::GraphStep::kWarmUp + 1; ++i) {
    const auto found = seen();
    EXPECT_FALSE(found.has_value()) << i << ": " << found->describe();
  }
  EXPECT_EQ(step.replays(), 2);
  const std::size_t seen_of_a_step = watch.peaks().size();

  const at::Tensor weight = instance.model->head->weight.detach(), healthy = weight.clone();
  weight[3][5] = kNan;
  const auto forward = seen();
  ASSERT_TRUE(forward.has_value());
  EXPECT_FALSE(forward->backward);
  EXPECT_EQ(forward->stage.name, "logits");
  EXPECT_EQ(forward->rows.size(), static_cast<std::size_t>(kS));
  (void)weight.copy_(healthy);
  EXPECT_FALSE(seen().has_value());

  spoiler.fill_(kInf);
  const auto backward = seen();
  ASSERT_TRUE(backward.has_value());
  EXPECT_TRUE(backward->backward);
  EXPECT_EQ(backward->stage.name, "layers.0.mlp");
  spoiler.zero_();
  EXPECT_FALSE(seen().has_value());
  EXPECT_EQ(step.replays(), 6);
  EXPECT_EQ(watch.peaks().size(), seen_of_a_step);
}
TEST(FiniteWatch, TellsOfEachReplayOfACapturedStep) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU: nothing is captured";
  tells_of_each_replay(false);
}
TEST(FiniteWatch, FollowsParametersThroughReplays) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU: nothing is captured";
  tells_of_each_replay(true);
}

class FiniteWatchOn : public testing::TestWithParam<at::ScalarType> {};

void every_kind_is_seen(at::Device device, at::ScalarType dtype) {
  for (const double value : {kNan, kInf, -kInf}) {
    for (const std::int64_t row : {0, 3, 699}) {
      const at::Tensor clean = at::randn({2, 700, 3, 5}, at::TensorOptions(at::kFloat)).to(device, dtype);
      FiniteWatch watch;
      watch.observe("layers.0.attention.win.o", clean);
      const RowMap map{{}, 700, {}};
      EXPECT_FALSE(watch.read(map).has_value());
      at::Tensor bad = clean.clone();
      bad.index_put_({at::tensor(1), at::tensor(row), at::tensor(2), at::tensor(4)},
                     at::full({}, value, bad.options()));
      watch.observe("layers.1.attention.win.o", bad);
      const auto found = watch.read(map);
      ASSERT_TRUE(found.has_value()) << value << " row " << row << " " << dtype;
      EXPECT_EQ(found->stage.layer, 1);
      EXPECT_EQ(found->rows, std::vector<std::int64_t>{row});
    }
  }
}

TEST_P(FiniteWatchOn, TheCpuSeesEveryKindInEveryDtype) { every_kind_is_seen(at::kCPU, GetParam()); }

TEST_P(FiniteWatchOn, TheGpuSeesEveryKindInEveryDtype) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU: reductions of this device cannot be tried";
  every_kind_is_seen(at::Device(at::kCUDA, 0), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, FiniteWatchOn, testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& dtype) { return std::string(c10::toString(dtype.param)); });

}  // namespace finite_watch_test
}  // namespace suites::probes
