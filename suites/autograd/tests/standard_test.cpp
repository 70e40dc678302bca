// The standard level of autograd: silent on the product, and each planted defect is found by the case that is for it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>

#include "suites/autograd/cases.hpp"
#include "suites/autograd/gradients_of.hpp"
#include "suites/codes.hpp"
#include "suites/probes/one_thread.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace suites {
namespace autograd_standard_test {

using Change = tests::OpsChange;
using tests::Codes;
using tests::Planted;

std::vector<tests::RunCase> run(const Planted& planted, const std::string& filter) {
  const probes::OneThread one_thread;
  static const harness::Settings settings = tests::default_settings();
  return tests::run_suite(autograd(Subject(tests::plant(planted))), settings, filter, harness::Level::standard);
}

// Grave codes of the one case that `filter` names.
Codes found(const Planted& planted, const std::string& filter) {
  const auto cases = run(planted, filter);
  EXPECT_EQ(cases.size(), 1U) << filter;
  return tests::grave_codes(cases);
}

Change window(const std::function<nsa::Attended(const nsa::AttendWindowArgs&, const nsa::Attended&)>& change) {
  return [change](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [change, inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      return change(args, inner(args));
    });
    return ops;
  };
}

void expect_silent(const std::string& filter, std::size_t at_least) { tests::expect_silent(run({}, filter), at_least); }

TEST(AutogradStandard, SensitivityIsSilentOnTheProduct) { expect_silent("autograd/sensitivity", 10); }
TEST(AutogradStandard, FutureIsSilentOnTheProduct) { expect_silent("autograd/future", 4); }
TEST(AutogradStandard, KeysAreSilentOnTheProduct) { expect_silent("autograd/keys", 10); }
TEST(AutogradStandard, ArrivalsAreSilentOnTheProduct) { expect_silent("autograd/arrivals", 5); }
TEST(AutogradStandard, RecomputationIsSilentOnTheProduct) { expect_silent("autograd/recomputation", 2); }
TEST(AutogradStandard, FrozenIsSilentOnTheProduct) { expect_silent("autograd/frozen", 6); }
TEST(AutogradStandard, AccumulationIsSilentOnTheProduct) { expect_silent("autograd/accumulation", 2); }
TEST(AutogradStandard, SecondBackwardIsSilentOnTheProduct) { expect_silent("autograd/second_backward", 5); }
TEST(AutogradStandard, DoubleBackwardIsSilentOnTheProduct) { expect_silent("autograd/double_backward", 12); }
TEST(AutogradStandard, GraphIsSilentOnTheProductByEveryWay) { expect_silent("autograd/graph[", 4); }
TEST(AutogradStandard, AnomalyModeIsSilentOnTheProductWithRecomputation) {
  expect_silent("autograd/anomaly_mode[layers=1,way=recompute]", 1);
}
TEST(AutogradStandard, GradientsAreThereByEveryWayAndDepth) { expect_silent("autograd/parameter_gradients[", 13); }

// -- sensitivity

// Each query attends its first visible key only: W_K then does not matter, and nothing crashes.
TEST(AutogradStandard, FirstKeyAttentionLeavesTheKeysInsensitive) {
  const Change first_key = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_compressed, [](const nsa::AttendCompressedArgs& args) {
      const std::int64_t h = args.q.size(2) / args.kv.v.size(2);
      const at::Tensor first = args.kv.v.narrow(1, 0, 1).repeat_interleave(h, 2);
      return nsa::Attended{first.expand({-1, args.q.size(1), -1, -1}) + args.q.sum(-1, true) * 0, {}};
    });
    return ops;
  };
  const auto cases = run({first_key, {}}, "sensitivity[way=sdpa]");
  ASSERT_EQ(cases.at(0).context.grave_codes(), tests::just(codes::kInsensitive));
  const auto& dead = cases[0].context.findings[0].evidence["parameters"];
  EXPECT_EQ(dead, harness::Json::array({"layers.0.attention.k_cmp.weight", "layers.1.attention.k_cmp.weight",
                                        "layers.2.attention.k_cmp.weight"}));
}

TEST(AutogradStandard, AChoiceThatAsksNobodyIsFound) {
  const Change fixed = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::select, [choose = ops.select](const nsa::SelectArgs& args) {
      nsa::SelectArgs blind = args;
      blind.q = at::ones_like(args.q);
      blind.k_cmp = at::ones_like(args.k_cmp);
      return choose(blind);
    });
    return ops;
  };
  const auto cases = run({fixed, {}}, "sensitivity[way=sdpa]");
  ASSERT_EQ(cases.at(0).context.grave_codes(), tests::just(codes::kInsensitive));
  EXPECT_EQ(cases[0].context.findings[0].evidence["parameters"].size(), 6U);  // q and k_cmp of three layers
}

// A forced branch into which another one still reaches.
TEST(AutogradStandard, AForcedBranchThatIsNotForcedIsFound) {
  const auto leak = [](nsa::LanguageModelImpl& model) {
    // The window's values reach the output past the ops table, whatever is forced.
    auto& block = *model.layers[1]->as<nsa::BlockImpl>();
    const at::Tensor values = block.attention->v_win->weight;
    model.runtime->ops = [values, inner = model.runtime->ops](const nsa::Call& call) {
      nsa::Ops ops = inner(call);
      ops.replace(&nsa::Ops::attend_compressed,
                  [values, attend = ops.attend_compressed](const nsa::AttendCompressedArgs& args) {
                    nsa::Attended out = attend(args);
                    out.o = out.o + values.mean();
                    return out;
                  });
      return ops;
    };
  };
  const auto cases = run({{}, leak}, "sensitivity[way=forced_cmp]");
  ASSERT_EQ(cases.at(0).context.grave_codes(), tests::just(codes::kNotSilenced));
  EXPECT_EQ(cases[0].context.findings[0].evidence["parameters"][0], "layers.1.attention.v_win.weight");
  EXPECT_EQ(found({{}, leak}, "parameter_gradients[way=forced_cmp]"), tests::just(codes::kNotSilenced));
}

// -- frozen

// What the window gives where the embedding does not learn.
Planted where_the_embedding_is_frozen(const std::function<at::Tensor(const at::Tensor&)>& change) {
  auto embedding = std::make_shared<at::Tensor>();
  return {window([embedding, change](const nsa::AttendWindowArgs&, const nsa::Attended& out) {
            return embedding->requires_grad() ? out : nsa::Attended{change(out.o), out.lse};
          }),
          [embedding](nsa::LanguageModelImpl& model) { *embedding = model.embedding->weight; }};
}

TEST(AutogradStandard, AParameterThatLosesItsGradientBesideAFrozenOneIsFound) {
  const Planted cut = where_the_embedding_is_frozen([](const at::Tensor& o) { return o.detach(); });
  EXPECT_EQ(found(cut, "frozen[way=sdpa]"), tests::just(codes::kNoGradient));
}

TEST(AutogradStandard, AGradientThatIsAnotherBesideAFrozenParameterIsFound) {
  const Planted doubled = where_the_embedding_is_frozen([](const at::Tensor& o) { return 2 * o - o.detach(); });
  EXPECT_EQ(found(doubled, "frozen[way=sdpa]"), tests::just(codes::kFrozenDiffers));
}

// -- future and keys

TEST(AutogradStandard, AValueOfTheNextTokenIsAFutureLeak) {
  const Change leak = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::AttendWindowArgs shifted = args;
      shifted.v = at::roll(args.v, -1, 1);
      return inner(shifted);
    });
    return ops;
  };
  const auto cases = run({leak, {}}, "future[way=sdpa]");
  ASSERT_EQ(cases.at(0).context.grave_codes(), tests::just(codes::kFutureLeak));
  EXPECT_EQ(cases[0].context.findings[0].evidence["stage"], "layers.0.attention.win.o");
  EXPECT_EQ(cases[0].context.findings[0].evidence["row"], 0);
  EXPECT_EQ(found({leak, {}}, "keys[backend=sdpa,op=attend_window]"), tests::just(codes::kFutureLeak));
}

// Scores that depend on all blocks: the outputs of a row stay causal, its chosen set does not.
TEST(AutogradStandard, AChoiceThatLooksAheadIsAFutureLeak) {
  const Change ahead = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::select, [choose = ops.select](const nsa::SelectArgs& args) {
      nsa::SelectArgs moved = args;
      moved.k_cmp = args.k_cmp * args.k_cmp.mean(1, true).sign();
      return choose(moved);
    });
    return ops;
  };
  const auto cases = run({ahead, {}}, "future[way=sdpa]");
  ASSERT_EQ(cases.at(0).context.grave_codes(), tests::just(codes::kFutureLeak));
  EXPECT_TRUE(cases[0].context.findings[0].evidence["choice_of_blocks"].get<bool>());
}

TEST(AutogradStandard, AWindowOfOneTokenTooManyReadsAForeignKey) {
  const Change wide = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::AttendWindowArgs wider = args;
      ++wider.geometry.w;
      return inner(wider);
    });
    return ops;
  };
  EXPECT_EQ(found({wide, {}}, "keys[backend=sdpa,op=attend_window]"), tests::just(codes::kForeignKey));
}

TEST(AutogradStandard, HeadsThatReadAnotherGroupAreFound) {
  const Change swapped = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_selected, [inner = ops.attend_selected](const nsa::AttendSelectedArgs& args) {
      nsa::AttendSelectedArgs other = args;
      other.v = at::roll(args.v, 1, 2);
      return inner(other);
    });
    return ops;
  };
  EXPECT_EQ(found({swapped, {}}, "keys[backend=sdpa,op=attend_selected]"), tests::just(codes::kForeignKey));
}

TEST(AutogradStandard, AKeyThatNobodyReadsIsFound) {
  const Change blind = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_compressed, [inner = ops.attend_compressed](const nsa::AttendCompressedArgs& args) {
      nsa::AttendCompressedArgs same = args;
      same.kv.k = at::zeros_like(args.kv.k);
      return inner(same);
    });
    return ops;
  };
  EXPECT_EQ(found({blind, {}}, "keys[backend=reference,op=attend_compressed]"), tests::just(codes::kInsensitive));
  EXPECT_EQ(found({blind, {}}, "keys[backend=reference,op=attend]"), tests::just(codes::kInsensitive));
}

// A part stays as it is: only the function that trains reads another group's keys.
TEST(AutogradStandard, HeadsThatReadAnotherGroupInAttentionAsAWholeAreFound) {
  const Change swapped = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend, [inner = ops.attend](const nsa::AttendArgs& args) {
      nsa::AttendArgs other = args;
      other.v_sel = at::roll(args.v_sel, 1, 2);
      return inner(other);
    });
    return ops;
  };
  const auto cases = run({swapped, {}}, "keys[backend=sdpa,op=attend]");
  ASSERT_EQ(cases.at(0).context.grave_codes(), tests::just(codes::kForeignKey));
  EXPECT_EQ(cases[0].context.findings[0].evidence["branch"], "sel");
}

// -- arrivals, accumulation, second backward

TEST(AutogradStandard, AHookThatStartsAnotherBackwardPassArrivesTwice) {
  const auto twice = [](nsa::LanguageModelImpl& model) {
    const at::Tensor other = model.norm->weight;
    model.head->weight.register_hook([other](const at::Tensor& gradient) {
      const at::AutoGradMode grad(true);
      (other * 0.0).sum().backward();
      return gradient;
    });
  };
  const auto cases = run({{}, twice}, "arrivals[way=sdpa]");
  ASSERT_EQ(cases.at(0).context.grave_codes(), tests::just(codes::kGradientArrivals));
  EXPECT_EQ(cases[0].context.findings[0].evidence["arrivals"], (harness::Json{{"norm.weight", 6}}));
}

TEST(AutogradStandard, AParameterThatIsUsedDetachedDoesNotArrive) {
  const Change detach = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::AttendWindowArgs cut = args;
      cut.v = args.v.detach();
      return inner(cut);
    });
    return ops;
  };
  const auto cases = run({detach, {}}, "arrivals[way=recompute]");
  ASSERT_EQ(cases.at(0).context.grave_codes(), tests::just(codes::kGradientArrivals));
  EXPECT_EQ(cases[0].context.findings[0].evidence["arrivals"].size(), 3U);  // v_win of three layers
}

// The rows of a batch see one another: the mean over the batch is taken off.
TEST(AutogradStandard, RowsThatSeeOneAnotherBreakAccumulation) {
  const Change mix = window([](const nsa::AttendWindowArgs&, const nsa::Attended& out) {
    return nsa::Attended{out.o - out.o.mean(0, true) * 0.5, out.lse};
  });
  EXPECT_EQ(found({mix, {}}, "accumulation[way=sdpa]"), tests::just(codes::kAccumulationDiffers));
}

TEST(AutogradStandard, AGradientThatDependsOnThePassBeforeIsFound) {
  const auto calls = std::make_shared<std::atomic<int>>(0);
  const auto drift = [calls](nsa::LanguageModelImpl& model) {
    model.head->weight.register_hook([calls](const at::Tensor& g) { return ++*calls % 2 == 0 ? g * 1.001 : g; });
  };
  EXPECT_EQ(found({{}, drift}, "second_backward[way=sdpa]"), tests::just(codes::kSecondBackward));
}

// -- recomputation

TEST(AutogradStandard, ASecondPassThatComputesSomethingElseIsFound) {
  const auto calls = std::make_shared<int>(0);
  const Change drift = window([calls](const nsa::AttendWindowArgs&, const nsa::Attended& out) {
    return nsa::Attended{out.o * (1 + 1e-3 * (++*calls % 8)), out.lse};  // eight calls a recomputed step of four layers
  });
  EXPECT_TRUE(found({drift, {}}, "recomputation[batch=dense]").contains(std::string(codes::kRecomputeDiffers)));
}

TEST(AutogradStandard, RecomputationThatDoesNotHappenIsFound) {
  const auto runtime = std::make_shared<std::weak_ptr<nsa::Runtime>>();
  const auto remember = [runtime](nsa::LanguageModelImpl& model) { *runtime = model.runtime; };
  const Change off = [runtime](nsa::Ops ops, const nsa::Call&) {
    if (const auto found = runtime->lock()) found->recompute = false;
    return ops;
  };
  EXPECT_TRUE(found({off, remember}, "recomputation[batch=packed]").contains(std::string(codes::kRecomputeDiffers)));
}

// -- double backward

// A backward pass of its own that forgets its graph: the first derivative is right, the second silently incomplete.
TEST(AutogradStandard, ABackwardPassWithACutGraphIsFound) {
  struct Square : torch::autograd::Function<Square> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
      context->save_for_backward({x});
      return x * x;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradient) {
      return {gradient[0] * 2 * context->get_saved_variables()[0].detach()};
    }
  };
  const Change cut = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::combine, [inner = ops.combine](const nsa::CombineArgs& args) {
      const at::Tensor o = inner(args);
      return Square::apply(o);
    });
    return ops;
  };
  EXPECT_EQ(found({cut, {}}, "gradcheck[backend=sdpa,op=combine]"), Codes{});  // the first derivative is right
  EXPECT_EQ(found({cut, {}}, "double_backward[backend=sdpa,op=combine]"), tests::just(codes::kDoubleBackward));
}

TEST(AutogradStandard, ARefusalThatNamesNothingIsFound) {
  struct Once : torch::autograd::Function<Once> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list gradient) {
      TORCH_CHECK(!at::GradMode::is_enabled(), "no");
      return gradient;
    }
  };
  const Change refuse = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::combine,
                [inner = ops.combine](const nsa::CombineArgs& args) { return Once::apply(inner(args)); });
    return ops;
  };
  EXPECT_EQ(found({refuse, {}}, "double_backward[backend=reference,op=combine]"), tests::just(codes::kDoubleBackward));
}

// -- the parts

TEST(AutogradStandard, DistanceSeesNanMissingAndTheWorstParameter) {
  using autograd_cases::distance;
  using autograd_cases::Gradients;
  const at::Tensor one = at::ones({3});
  const Gradients a = {{"x", one}, {"y", one}, {"z", at::Tensor()}};
  EXPECT_TRUE(distance(a, a).bit_equal);
  const auto off = distance({{"x", one * 1.25}, {"y", one * 1.5}, {"z", at::Tensor()}}, a);
  EXPECT_EQ(off.parameter, "y");
  EXPECT_DOUBLE_EQ(off.largest, 0.5);
  EXPECT_TRUE(std::isinf(distance({{"x", one}, {"y", one}, {"z", one}}, a).largest));
  EXPECT_TRUE(std::isinf(distance({{"x", one}, {"y", one * std::nan("")}, {"z", at::Tensor()}}, a).largest));
}

TEST(AutogradStandard, WhatAFlagCutsOffIsListed) {
  using autograd_cases::gradient_is_cut;
  using autograd_cases::model_way;
  using autograd_cases::output_is_cut;
  const auto& sel = model_way("forced_sel").flags;
  EXPECT_TRUE(output_is_cut("layers.0.attention.gate.fc1.bias", sel));
  EXPECT_TRUE(output_is_cut("layers.0.attention.k_cmp.weight", sel));
  EXPECT_FALSE(output_is_cut("layers.0.attention.v_sel.weight", sel));
  EXPECT_FALSE(output_is_cut("layers.0.attention.q.weight", sel));
  const auto& stopgrad = model_way("stopgrad_gates").flags;
  EXPECT_FALSE(output_is_cut("layers.0.attention.gate.fc1.bias", stopgrad));
  EXPECT_TRUE(gradient_is_cut("layers.0.attention.gate.fc1.bias", stopgrad));
  EXPECT_THROW((void)model_way("sdpb"), std::out_of_range);
}

}  // namespace autograd_standard_test
}  // namespace suites
