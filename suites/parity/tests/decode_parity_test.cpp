// The standard level of parity: silent on the product, and each planted defect of decoding, of a backend and of the
// model found by the case that must find it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "nsa/model/rope.hpp"
#include "suites/codes.hpp"
#include "suites/parity/cases.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace suites {
namespace {

using nsa::Compressed;
using nsa::Projected;
using nsa::decode::LayerCache;
using nsa::decode::StepAttendArgs;
using nsa::decode::StepOps;
using nsa::decode::StepSelectArgs;
using nsa::decode::Stream;

std::vector<tests::RunCase> run(const std::function<void(Seams&)>& plant, const std::string& filter) {
  auto seams = std::make_shared<Seams>();
  if (plant) plant(*seams);
  static const harness::Settings settings = tests::default_settings(parity);
  auto ran = tests::run_suite(parity(Subject(seams)), settings, filter, harness::Level::standard);
  EXPECT_FALSE(ran.empty()) << filter;
  for (const auto& c : ran) EXPECT_EQ(c.exception, "") << c.id;
  return ran;
}

tests::Codes found(const std::function<void(Seams&)>& plant, const std::string& filter) {
  return tests::grave_codes(run(plant, filter));
}

std::function<void(Seams&)> in_steps(void (*change)(StepOps&)) {
  return [change](Seams& seams) {
    seams.decode.push_back([change](StepOps ops) {
      change(ops);
      return ops;
    });
  };
}

bool holds(const std::set<std::string>& all, std::string_view code) { return all.contains(std::string(code)); }

constexpr const char* kExactWays = "xpath[model=subject,precision=fp64]";

void expect_silent(const std::string& filter) { tests::expect_silent(run({}, filter)); }

TEST(DecodeParity, EveryWayAgreesOnTheProduct) {
  expect_silent("xpath");
  const auto ran = run({}, kExactWays);
  const harness::Json& table = ran[0].context.facts["ways"];
  std::set<std::int64_t> prefills;
  EXPECT_EQ(table[0]["selection"], "sdpa/packed_safe");
  for (const auto& row : table) {
    if (row["way"] == "training forward") continue;
    EXPECT_LT(row["relative_to_rms"].get<double>(), 1e-11) << row["way"];
    if (row.contains("prefill")) prefills.insert(row["prefill"].get<std::int64_t>());
  }
  EXPECT_EQ(prefills, (std::set<std::int64_t>{0, 1, 7, 8, 9, 41, 82, 83}));  // 0, 1, l-1, l, l+1, S/2, S-1, S
}
TEST(DecodeParity, ReadsAreSilentOnTheProduct) { expect_silent("parity/reads"); }
TEST(DecodeParity, IdentitiesAreSilentOnTheProduct) { expect_silent("model_identity"); }
TEST(DecodeParity, PairsAreSilentOnTheProduct) {
  expect_silent("parity/pairwise");
  expect_silent("model_pairwise");
}

// The compressed branch's raw stream starts anew after the prefill (L7): the next block is made of
// zeros and new tokens.
void lose_raw_stream(StepOps& ops) {
  ops.remember = [inner = ops.remember](LayerCache& cache, const Projected& tokens) {
    inner(cache, tokens);
    if (tokens.q.size(1) == 1) return;
    for (Stream* raw : {&cache.k_raw, &cache.v_raw})
      raw->append(at::zeros_like(raw->last(raw->kept()).transpose(1, 2)));
  };
}

TEST(DecodeParity, FindsARawStreamThatIsNotCarriedOver) {
  const auto ran = run(in_steps(lose_raw_stream), kExactWays);
  std::set<std::string> ways;
  bool located = false;
  for (const auto& finding : ran[0].context.findings) {
    EXPECT_TRUE(finding.code == codes::kWaysDiffer || finding.code == codes::kDecodeChoice) << finding.message;
    ways.insert(finding.evidence["way"].get<std::string>());
    if (finding.code == codes::kWaysDiffer && finding.evidence.value("prefill", -1) == 41 &&
        finding.evidence.contains("first")) {
      EXPECT_EQ(finding.evidence["first"]["branch"], "cmp") << finding.evidence.dump(2);
      EXPECT_EQ(finding.evidence["first"]["layer"], 0);
      EXPECT_EQ(finding.evidence["first"]["token"], 43);  // the first block that ends after the prefill of 41
      located = true;
    }
  }
  EXPECT_TRUE(located);
  // A prefill of all tokens loses nothing that is needed.
  EXPECT_TRUE(ways.contains("prefill(41) + 42 steps"));
  EXPECT_TRUE(ways.contains("prefill(7) + 76 steps"));
  EXPECT_FALSE(ways.contains("prefill(83)"));
  EXPECT_FALSE(ways.contains("decode all 83 tokens"));
}

TEST(DecodeParity, FindsAWindowRingThatIsOffByOne) {
  const auto off = [](StepOps& ops) {
    ops.remember = [inner = ops.remember](LayerCache& cache, const Projected& tokens) {
      inner(cache, tokens);
      if (tokens.q.size(1) > 32) cache.k_win.append(tokens.k_win.narrow(1, 0, 1));  // w = 32: the ring is full
    };
  };
  EXPECT_TRUE(holds(found(in_steps(off), kExactWays), codes::kWaysDiffer));
  EXPECT_TRUE(holds(found(in_steps(off), "xpath[model=subject,precision=fp32]"), codes::kWaysDiffer));
}

TEST(DecodeParity, FindsAWindowThatIsOneTokenTooWide) {
  const auto wide = [](StepOps& ops) {
    ops.remember = [inner = ops.remember](LayerCache& cache, const Projected& tokens) {
      if (cache.k_win.seen() == 0) cache.k_win = cache.v_win = Stream(33);  // w = 32
      inner(cache, tokens);
    };
  };
  EXPECT_TRUE(holds(found(in_steps(wide), kExactWays), codes::kWaysDiffer));
  EXPECT_EQ(found(in_steps(wide), "parity/reads"), std::set<std::string>{std::string(codes::kReadsLaw)});
}

// A causal mask that is aligned to the top left lets one query see the first key alone (F06, L1).
void top_left_mask(StepOps& ops) {
  ops.attend = [](const StepAttendArgs& args) {
    const std::int64_t B = args.q.size(0), G = args.k.size(1), h = args.q.size(2) / G;
    const at::Tensor heads = args.q.view({B, G, h, -1}).transpose(1, 2).reshape({B * h, G, 1, -1});
    const auto spread = [&](const at::Tensor& t) { return t.repeat_interleave(h, 0); };
    const at::Tensor o =
        at::scaled_dot_product_attention(heads, spread(args.k), spread(args.v), {}, 0.0, /*is_causal=*/true);
    return o.view({B, h, G, -1}).transpose(1, 2).reshape({B, 1, G * h, -1});
  };
}

TEST(DecodeParity, FindsATopLeftMaskWithOneQuery) {
  EXPECT_TRUE(holds(found(in_steps(top_left_mask), kExactWays), codes::kWaysDiffer));
  EXPECT_TRUE(holds(found(in_steps(top_left_mask), "xpath[model=subject,precision=bf16]"), codes::kWaysDiffer));
}

TEST(DecodeParity, FindsASelectionThatLosesTheCurrentBlock) {
  const auto lose = [](StepOps& ops) {
    ops.select = [inner = ops.select](const StepSelectArgs& args) {
      at::Tensor blocks = inner(args).clone();
      const std::int64_t current = args.t / args.geometry.l_sel;
      const bool partial = args.t % args.geometry.l_sel < args.geometry.l_sel - 1;
      if (partial && current >= args.geometry.n_sel) {  // the best block that was left out takes its place
        for (std::int64_t block = 0; block < current; ++block) {
          const at::Tensor missing = blocks.ne(block).all(-1, true), last = blocks.eq(current).logical_and(missing);
          blocks.masked_fill_(last, static_cast<double>(block));
        }
        blocks = std::get<0>(blocks.sort(-1));
      }
      return blocks;
    };
  };
  const auto ran = run(in_steps(lose), kExactWays);
  EXPECT_TRUE(holds(ran[0].context.grave_codes(), codes::kDecodeChoice));
  bool named = false;
  for (const auto& finding : ran[0].context.findings)
    named = named || finding.message.find("forced block 4 is missing") != std::string::npos;
  EXPECT_TRUE(named);
}

// What lies where the block should be is no block: gathering with it would break the process on a GPU.
TEST(DecodeParity, NamesAChoiceThatCannotBeGathered) {
  const auto one_too_few = [](StepOps& ops) {
    ops.select = [inner = ops.select](const StepSelectArgs& args) {
      at::Tensor blocks = inner(args).clone();
      const std::int64_t last = blocks.size(3) - 1;
      return blocks.masked_fill(at::arange(last + 1).eq(last), -1);
    };
  };
  const auto ran = run(in_steps(one_too_few), kExactWays);
  ASSERT_TRUE(holds(ran[0].context.grave_codes(), codes::kDecodeChoice));
  EXPECT_NE(ran[0].context.findings[0].message.find("at token 48 are [0, 1, 2, -1]"), std::string::npos)
      << ran[0].context.findings[0].message;
  EXPECT_EQ(found(in_steps(one_too_few), "whole_decoding[model=subject,precision=fp32]"),
            std::set<std::string>{std::string(codes::kDecodeChoice)});
}

TEST(DecodeParity, FindsBlocksThatPrefillDoesNotHandOver) {
  const auto forget = [](StepOps& ops) {
    ops.remember_blocks = [inner = ops.remember_blocks](LayerCache& cache, const Compressed& blocks) {
      if (blocks.k.size(1) == 1) inner(cache, blocks);
    };
  };
  const auto ran = run(in_steps(forget), "parity/reads");
  ASSERT_EQ(ran[0].context.findings.size(), 2U);  // after the prefills of more than one block
  EXPECT_EQ(ran[0].context.findings[0].code, codes::kReadsLaw);
  EXPECT_EQ(ran[0].context.findings[0].evidence["prefill"], 41);
}

TEST(DecodeParity, FindsANanThatOnlyDecodingMakes) {
  const auto nan = [](StepOps& ops) {
    ops.attend = [inner = ops.attend](const StepAttendArgs& args) {
      return inner(args) * (args.k.size(2) == 32 ? std::numeric_limits<double>::quiet_NaN() : 1.0);
    };
  };
  EXPECT_TRUE(holds(found(in_steps(nan), kExactWays), codes::kWaysDiffer));
}

TEST(DecodeParity, FindsAPackedBatchThatForgetsItsBoundaries) {
  const auto forget = [](Seams& seams) {
    seams.ops.push_back([](nsa::Ops ops, const nsa::Call&) {
      ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](nsa::AttendWindowArgs args) {
        args.cu_seqlens = {};
        return inner(args);
      });
      return ops;
    });
  };
  const auto ran = run(forget, kExactWays);
  ASSERT_FALSE(ran[0].context.findings.empty());
  for (const auto& finding : ran[0].context.findings) {
    EXPECT_EQ(finding.code, codes::kWaysDiffer) << finding.message;
    EXPECT_EQ(finding.evidence["way"], "packed");
  }
  EXPECT_EQ(ran[0].context.findings.back().evidence["first"]["branch"], "win");
}

TEST(DecodeParity, FindsABackendThatDiffersFromTheOthers) {
  const auto scaled = [](Seams& seams) {
    seams.ops.push_back([](nsa::Ops ops, const nsa::Call& call) {
      if (call.training) return ops;  // only the way without gradients
      ops.replace(&nsa::Ops::attend_selected, [inner = ops.attend_selected](const nsa::AttendSelectedArgs& args) {
        nsa::Attended out = inner(args);
        out.o = out.o * 1.001;
        return out;
      });
      return ops;
    });
  };
  const auto ran = run(scaled, "pairwise[dtype=fp32,op=attend_selected]");
  ASSERT_FALSE(ran[0].context.findings.empty());
  for (const auto& finding : ran[0].context.findings) {
    EXPECT_EQ(finding.code, codes::kBackendsDiffer);
    EXPECT_EQ(finding.evidence["backends"][1], "sdpa_packed") << finding.message;
  }
}

TEST(DecodeParity, FindsABackendWhoseGradientsDiffer) {
  const auto gradient = [](Seams& seams) {
    seams.ops.push_back([layers = std::make_shared<int>(0)](nsa::Ops ops, const nsa::Call&) {
      if (++*layers <= 3) return ops;  // the first model of three layers is as it should be
      ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
        nsa::Attended out = inner(args);
        out.o = out.o.detach() + (out.o - out.o.detach()) * 1.01;
        return out;
      });
      return ops;
    });
  };
  const auto ran = run(gradient, "model_pairwise[model=subject]");
  ASSERT_FALSE(ran[0].context.findings.empty());
  EXPECT_EQ(ran[0].context.findings[0].code, codes::kBackendsDiffer);
  EXPECT_EQ(ran[0].context.findings[0].evidence["backends"][1], "masked selection");
  EXPECT_EQ(ran[0].context.findings[0].message.find("loss"), std::string::npos);
}

TEST(DecodeParity, FindsAModelThatDependsOnWhereTheTextStarts) {
  // Rotated keys weighed by place: the two numbers of a pair no longer turn together.
  const auto offset = [](Seams& seams) {
    seams.ops.push_back([](nsa::Ops ops, const nsa::Call&) {
      ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](nsa::AttendWindowArgs args) {
        args.k = args.k * (1 + 0.1 * at::arange(args.k.size(3), args.k.options()));
        return inner(args);
      });
      return ops;
    });
  };
  EXPECT_EQ(found(offset, "model_identity[name=relative_shift]"),
            std::set<std::string>{std::string(codes::kRelativeShift)});
}

TEST(DecodeParity, FindsRopeOverFlattenedHeads) {
  nsa::ModelConfig model;
  model.n_heads = 4;
  model.n_kv_groups = 2;
  model.d_k = 16;
  // The defect L2: all heads of a tensor turned as if they were one wide head.
  const auto flattened = [](const at::Tensor& x, const at::Tensor& rotations) {
    const at::Tensor angle = at::angle(rotations).select(1, 1).unsqueeze(1);  // [S,1]
    const std::int64_t pairs = x.size(2) * x.size(3) / 2;
    const at::Tensor wide = at::polar(at::ones({1, pairs}, angle.options()),
                                      angle * at::arange(1, pairs + 1, angle.options()).reciprocal());
    return nsa::rotate(x.flatten(2).unsqueeze(2), wide).view(x.sizes());
  };
  EXPECT_GT(parity_cases::shift_error(flattened, model, at::kCPU, at::kDouble, 1).relative, 1e-3);
  EXPECT_LT(parity_cases::shift_error(nsa::rotate, model, at::kCPU, at::kDouble, 1).relative, 1e-5);
  EXPECT_LT(parity_cases::shift_error(nsa::rotate, model, at::kCPU, at::kFloat, 1).relative, 1e-5);
}

TEST(DecodeParity, FindsHeadsThatAreMixedUp) {
  const auto mixed = [](Seams& seams) {  // the first head of a group gets the values' sum of another
    seams.ops.push_back([](nsa::Ops ops, const nsa::Call&) {
      ops.replace(&nsa::Ops::attend_selected, [inner = ops.attend_selected](const nsa::AttendSelectedArgs& args) {
        nsa::Attended out = inner(args);
        out.o = out.o * at::arange(1, out.o.size(2) + 1, out.o.options()).view({1, 1, -1, 1});
        return out;
      });
      return ops;
    });
  };
  EXPECT_TRUE(holds(found(mixed, "model_identity[name=head_permutation]"), codes::kModelIdentity));
  EXPECT_TRUE(holds(found(mixed, "model_identity[name=group_permutation]"), codes::kModelIdentity));
  const auto shifted = [](Seams& seams) {
    seams.ops.push_back([](nsa::Ops ops, const nsa::Call&) {
      ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](nsa::AttendWindowArgs args) {
        args.v = args.v + 0.1;
        return inner(args);
      });
      return ops;
    });
  };
  EXPECT_TRUE(holds(found(shifted, "model_identity[name=value_scaling]"), codes::kModelIdentity));
}

// Blocks that end after the prefill are not kept: the selected branch chooses among the old ones.
TEST(DecodeParity, FindsABranchThatDecodingForgetsWhenItIsAlone) {
  const auto stale = in_steps([](StepOps& ops) { ops.remember_blocks = [](LayerCache&, const Compressed&) {}; });
  EXPECT_TRUE(holds(found(stale, "model_identity[name=branch_alone]"), codes::kModelIdentity));
}

// As a softmax that takes exp of the logits themselves: infinity over infinity.
TEST(DecodeParity, FindsGatesThatGreatLogitsUpset) {
  const auto overflow = [](Seams& seams) {
    const auto bias = std::make_shared<at::Tensor>();
    seams.model.push_back([bias](nsa::LanguageModelImpl& model) {
      *bias = model.layers->ptr<nsa::BlockImpl>(0)->attention->gate->fc2->bias;
    });
    seams.ops.push_back([bias](nsa::Ops ops, const nsa::Call&) {
      ops.replace(&nsa::Ops::combine, [bias, inner = ops.combine](nsa::CombineArgs args) {
        if (bias->max().item<double>() > 700) args.gates = args.gates * std::numeric_limits<double>::quiet_NaN();
        return inner(args);
      });
      return ops;
    });
  };
  EXPECT_TRUE(holds(found(overflow, "model_identity[name=gate_shift]"), codes::kModelIdentity));
}

}  // namespace
}  // namespace suites
