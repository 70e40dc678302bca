#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "suites/codes.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace suites {
namespace throughput_test {

using testing::HasSubstr;
using tests::RecordingContext;

RecordingContext run(const std::string& name, const std::shared_ptr<Seams>& seams,
                     const std::vector<std::pair<std::string, std::string>>& set = {}) {
  static std::vector<std::unique_ptr<harness::Settings>> kept;  // a context refers to its settings
  kept.push_back(std::make_unique<harness::Settings>(tests::default_settings(throughput)));
  for (const auto& [key, value] : set) kept.back()->set(key, value, "test");
  return tests::run_case(throughput(Subject(seams)), name, *kept.back());
}

const RecordingContext::Found* find(const RecordingContext& context, std::string_view code) {
  return tests::found(context, code) ? &tests::finding(context, code) : nullptr;
}

TEST(Throughput, NothingGraveOnAHealthyProduct) {
  for (const std::string name :
       {"training_step", "inference", "kv_expansion", "decoding_bytes", "work_law", "packing"}) {
    // A floor of 0: no time decides here, however busy the machine is.
    const RecordingContext context = run(name, std::make_shared<Seams>(), {{"throughput.floor_tok_s", "0"}});
    EXPECT_TRUE(context.grave_codes().empty()) << name << "\n" << tests::listed(context);
  }
}

TEST(Throughput, TellsWhatItMeasured) {
  const RecordingContext step = run("training_step", std::make_shared<Seams>());
  EXPECT_GT(step.metrics["training_step"]["value"], 0);
  EXPECT_EQ(step.metrics["training_step"]["unit"], "tok/s");
  EXPECT_TRUE(step.facts["utilisation"].contains("gpu_unknown_because")) << "no GPU figure, and why";
  const RecordingContext inference = run("inference", std::make_shared<Seams>());
  EXPECT_EQ(inference.facts["stages"].size(), 6U);
  EXPECT_GT(inference.metrics["attention_to_model"]["value"], 0);
}

TEST(Throughput, AFloorThatCannotBeReachedIsFarBelowGate) {
  const RecordingContext context =
      run("training_step", std::make_shared<Seams>(), {{"throughput.floor_tok_s", "1e12"}});
  const auto* finding = find(context, codes::kFarBelowGate);
  ASSERT_NE(finding, nullptr) << tests::listed(context);
  EXPECT_EQ(finding->severity, reports::Severity::block);
  EXPECT_TRUE(finding->evidence["rate"].contains("low"));
}

// `--config configs/gates/h200.yaml` with another model: that of default.yaml holds.
TEST(Throughput, AFloorOfAnotherModelAccusesNobody) {
  const RecordingContext context = run("training_step", std::make_shared<Seams>(),
                                       {{"throughput.floor_tok_s", "1e12"}, {"throughput.gate_model", "another"}});
  EXPECT_EQ(find(context, codes::kFarBelowGate), nullptr) << tests::listed(context);
}

TEST(Throughput, TrainingThatStopsIsNoProgress) {
  auto seams = std::make_shared<Seams>();
  seams->model.push_back([](nsa::LanguageModelImpl& model) {
    model.head->weight.register_hook([](const at::Tensor& g) { return g * std::numeric_limits<double>::quiet_NaN(); });
  });
  const RecordingContext context = run("training_step", seams);
  ASSERT_NE(find(context, codes::kFarBelowGate), nullptr) << tests::listed(context);
  EXPECT_THAT(find(context, codes::kFarBelowGate)->message, HasSubstr("no progress"));
}

TEST(Throughput, KeysAndValuesPerHeadAreCaughtInEveryBranch) {
  const auto wide = [](const at::Tensor& t, std::int64_t Hq) {
    return t.repeat_interleave(Hq / t.size(2), 2).contiguous();
  };
  const auto window = tests::on_ops([wide](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [wide, inner = ops.attend_window](nsa::AttendWindowArgs args) {
      args.k = wide(args.k, args.q.size(2));
      args.v = wide(args.v, args.q.size(2));
      return inner(args);
    });
    return ops;
  });
  const auto selected = tests::on_ops([wide](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_selected, [wide, inner = ops.attend_selected](nsa::AttendSelectedArgs args) {
      const std::int64_t h = args.q.size(2) / args.k.size(2);
      args.k = wide(args.k, args.q.size(2));
      args.v = wide(args.v, args.q.size(2));
      args.blocks = args.blocks.repeat_interleave(h, 2);
      return inner(args);
    });
    return ops;
  });
  const auto compressed = tests::on_ops([wide](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_compressed, [wide, inner = ops.attend_compressed](nsa::AttendCompressedArgs args) {
      args.kv.k = wide(args.kv.k, args.q.size(2));
      args.kv.v = wide(args.kv.v, args.q.size(2));
      return inner(args);
    });
    return ops;
  });
  for (const auto& [op, seams] : {std::pair{"attend_window", window}, std::pair{"attend_selected", selected},
                                  std::pair{"attend_compressed", compressed}}) {
    const RecordingContext context = run("kv_expansion", seams);
    const auto* finding = find(context, codes::kExpandedKv);
    ASSERT_NE(finding, nullptr) << op;
    EXPECT_EQ(finding->evidence["op"], op);
    EXPECT_GE(finding->evidence["ratio"].get<double>(), 3) << op;
    EXPECT_FALSE(finding->evidence["copies"].empty());
  }
}

// The bound has room: what a healthy product copies is at most three quarters of what is allowed.
TEST(Throughput, TheBoundOnCopiesLeavesRoom) {
  const RecordingContext context = run("kv_expansion", std::make_shared<Seams>());
  for (const char* fact : {"with_gradients", "without_gradients"}) {
    ASSERT_EQ(context.facts[fact].size(), 3U);
    for (const harness::Json& row : context.facts[fact]) EXPECT_LE(row["ratio"].get<double>(), 1.5) << row.dump();
  }
}

TEST(Throughput, AStepThatCopiesACacheIsFound) {
  auto seams = std::make_shared<Seams>();
  seams->decode.push_back([](nsa::decode::StepOps ops) {
    ops.remember = [inner = ops.remember](nsa::decode::LayerCache& cache, const nsa::Projected& tokens) {
      inner(cache, tokens);
      (void)cache.k_sel.rows().clone();
      (void)cache.v_sel.rows().clone();
    };
    return ops;
  });
  const RecordingContext context = run("decoding_bytes", seams);
  EXPECT_NE(find(context, codes::kDecodeCopies), nullptr) << tests::listed(context) << context.metrics.dump();
}

TEST(Throughput, RowsThatAreKeptForGoodAreFound) {
  auto seams = std::make_shared<Seams>();
  seams->decode.push_back([](nsa::decode::StepOps ops) {
    ops.remember = [inner = ops.remember](nsa::decode::LayerCache& cache, const nsa::Projected& tokens) {
      if (cache.k_raw.seen() == 0) cache.k_raw = cache.v_raw = nsa::decode::Stream();  // a ring without a limit
      inner(cache, tokens);
    };
    return ops;
  });
  const RecordingContext context = run("decoding_bytes", seams);
  EXPECT_NE(find(context, codes::kCacheKeepsAll), nullptr) << tests::listed(context) << context.metrics.dump();
  EXPECT_EQ(find(context, codes::kDecodeCopies), nullptr) << tests::listed(context);
}

TEST(Throughput, ARingThatIsLargerThanItMustBeIsFound) {
  auto seams = std::make_shared<Seams>();
  seams->decode.push_back([](nsa::decode::StepOps ops) {
    ops.remember = [inner = ops.remember](nsa::decode::LayerCache& cache, const nsa::Projected& tokens) {
      if (cache.k_raw.seen() == 0) cache.k_raw = cache.v_raw = nsa::decode::Stream(/*limit=*/64);  // l = 8
      inner(cache, tokens);
    };
    return ops;
  });
  const RecordingContext context = run("decoding_bytes", seams);
  ASSERT_NE(find(context, codes::kCacheKeepsAll), nullptr) << tests::listed(context) << context.metrics.dump();
  EXPECT_TRUE(find(context, codes::kCacheKeepsAll)->evidence.contains("ring_bytes"));
}

TEST(Throughput, AWindowOverAllKeysIsFound) {
  const RecordingContext context =
      run("work_law", tests::on_ops([](nsa::Ops ops, const nsa::Call&) {
            ops.replace(&nsa::Ops::attend_window, nsa::backend_ops(nsa::Backend::reference).attend_window);
            return ops;
          }));
  const auto* finding = find(context, codes::kMemoryLaw);
  ASSERT_NE(finding, nullptr) << tests::listed(context) << context.metrics.dump();
  EXPECT_EQ(finding->evidence["op"], "attend_window");
}

TEST(Throughput, AGatheredSelectionThatKeepsMoreThanItsBudgetIsFound) {
  const RecordingContext context =
      run("work_law", tests::on_ops([](nsa::Ops ops, const nsa::Call&) {
            ops.replace(&nsa::Ops::attend_selected, [inner = ops.attend_selected](const nsa::AttendSelectedArgs& args) {
              return nsa::Attended{inner(args).o * 0.5 + inner(args).o * 0.5, {}};
            });
            return ops;
          }));
  const auto* finding = find(context, codes::kMemoryLaw);
  ASSERT_NE(finding, nullptr) << tests::listed(context) << context.metrics.dump();
  EXPECT_TRUE(finding->evidence.contains("reckoned_bytes"));
}

TEST(Throughput, PackingIntoFreshTensorsWithoutGradientsIsCaught) {
  const RecordingContext context = run("packing", tests::on_ops([](nsa::Ops ops, const nsa::Call&) {
                                         const nsa::Ops safe = nsa::backend_ops(nsa::Backend::sdpa);
                                         ops.replace(&nsa::Ops::attend_selected, safe.attend_selected);  // packs safely
                                         return ops;
                                       }));
  EXPECT_NE(find(context, codes::kWorkspaceNotReused), nullptr) << tests::listed(context) << context.facts.dump();
}

TEST(Throughput, ASlowOpIsBelowTheGate) {
  const RecordingContext context =
      run("training_step", tests::on_ops([](nsa::Ops ops, const nsa::Call&) {
            ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
              std::this_thread::sleep_for(std::chrono::milliseconds(300));
              return inner(args);
            });
            return ops;
          }),
          {{"throughput.floor_tok_s", "100000"}});  // 3 layers x 0.3 s for 1024 tokens: at most 1138 tok/s
  EXPECT_NE(find(context, codes::kFarBelowGate), nullptr) << tests::listed(context);
}

}  // namespace throughput_test
}  // namespace suites
