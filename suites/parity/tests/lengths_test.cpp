// Attention in the shape that is trained with: what is wrong in that shape alone is found, and nothing else.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "nsa/reference/reference.hpp"
#include "suites/codes.hpp"
#include "suites/parity/cases.hpp"
#include "suites/registry.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::parity_cases {
namespace {

using OpsChange = std::function<nsa::Ops(nsa::Ops, const nsa::Call&)>;
using ConfigChange = std::function<void(nsa::Config&)>;
using Body = void (*)(harness::Context&, const Subject&);

// The grave codes of one case on the tiny model.
std::set<std::string> codes_of(Body body, const OpsChange& fault, const ConfigChange& change = {}) {
  auto seams = std::make_shared<Seams>();
  if (fault) seams->ops.push_back(fault);
  if (change) seams->configuration.push_back(change);
  static const harness::Settings settings = tests::default_settings(parity);
  tests::RecordingContext context(settings);
  body(context, Subject(seams));
  EXPECT_GT(context.checks, 14);
  return context.grave_codes();
}

// Attention as a whole, with one tensor's gradient on its way back, or its output, changed where `here` says so.
OpsChange in_attend(const std::function<bool(const nsa::AttendArgs&)>& here,
                    const std::function<at::Tensor(const at::Tensor&)>& change, at::Tensor nsa::AttendArgs::*gradient) {
  return [=](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend, [=, inner = ops.attend](nsa::AttendArgs args) {
      if (!here(args)) return inner(args);
      if (gradient == nullptr) return change(inner(args));
      args.*gradient = (args.*gradient).alias();
      (args.*gradient).register_hook([change](const at::Tensor& g) { return change(g); });
      return inner(args);
    });
    return ops;
  };
}

std::function<at::Tensor(const at::Tensor&)> times(double factor) {
  return [factor](const at::Tensor& t) { return t * factor; };
}

void pack(nsa::Config& config) {
  config.train.packed = true;
  config.train.batch_size = 1;
}
void narrow(nsa::Config& config) { config.train.precision = nsa::Precision::bf16; }

const std::string kOutput(codes::kOutputBudget), kGradient(codes::kGradientBudget), kChoice(codes::kSelectionDiffers);

TEST(AttentionInTraining, IsSilentOnTheProduct) {
  for (const ConfigChange& change : {ConfigChange{}, ConfigChange{pack}, ConfigChange{narrow},
                                     ConfigChange{[](nsa::Config& c) { c.model.phi = nsa::Phi::mlp; }}}) {
    EXPECT_TRUE(codes_of(attention_in_training, {}, change).empty());
    EXPECT_TRUE(codes_of(attention_packed, {}, change).empty());
  }
}

TEST(AttentionInTraining, AFaultOfTheBatchAloneIsFound) {
  const auto batch = [](const nsa::AttendArgs& args) { return args.q.size(0) == 8; };
  EXPECT_TRUE(codes_of(attention_in_training, in_attend(batch, times(0), &nsa::AttendArgs::q)).contains(kGradient));
  EXPECT_TRUE(
      codes_of(attention_in_training, in_attend(batch, times(0.5), &nsa::AttendArgs::v_sel)).contains(kGradient));
  EXPECT_TRUE(codes_of(attention_in_training, in_attend(batch, times(1.02), nullptr)).contains(kOutput));
  const auto last = [](const at::Tensor& o) {
    at::Tensor wrong = o.clone();
    wrong.select(0, -1).mul_(1.05);
    return wrong;
  };
  EXPECT_TRUE(codes_of(attention_in_training, in_attend(batch, last, nullptr)).contains(kOutput));
}

TEST(AttentionInTraining, AFaultOfItsPrecisionAloneIsFound) {
  const auto bf16 = [](const nsa::AttendArgs& args) { return args.q.scalar_type() == at::kBFloat16; };
  for (const double factor : {-1.0, 1.05})
    EXPECT_TRUE(codes_of(attention_in_training, in_attend(bf16, times(factor), &nsa::AttendArgs::q), narrow)
                    .contains(kGradient))
        << factor;
}

TEST(AttentionInTraining, AFaultOfPackedBatchesAloneIsFound) {
  const auto packed = [](const nsa::AttendArgs& args) { return args.cu_seqlens.has_value(); };
  for (const auto& [body, change] :
       {std::pair<Body, ConfigChange>{attention_packed, {}}, {attention_in_training, pack}})
    for (const double factor : {0.0, 1.5, 1.05})
      EXPECT_TRUE(codes_of(body, in_attend(packed, times(factor), &nsa::AttendArgs::q), change).contains(kGradient))
          << factor;
}

// The scores' lowest blocks instead of the highest, or the scores of the block before: at this length alone.
TEST(AttentionInTraining, AWrongChoiceOfBlocksIsFound) {
  for (const bool reversed : {true, false}) {
    const OpsChange fault = [reversed](nsa::Ops ops, const nsa::Call&) {
      ops.replace(&nsa::Ops::select, [reversed, inner = ops.select](const nsa::SelectArgs& args) {
        if (args.q.size(1) != 128) return inner(args);
        const at::Tensor p = nsa::reference::compressed_probabilities(args.q, args.k_cmp, args.geometry);
        const at::Tensor scores = nsa::reference::importance(p, args.geometry, args.k_cmp.size(2), args.q.size(1));
        return nsa::reference::choose(reversed ? -scores : scores.roll(1, -1), args.geometry);
      });
      return ops;
    };
    EXPECT_TRUE(codes_of(attention_in_training, fault).contains(kChoice)) << reversed;
  }
}

TEST(AttentionInTraining, AFaultOfCompressionIsFound) {
  const auto with = [](const std::function<void(nsa::Compressed&)>& change) -> OpsChange {
    return [change](nsa::Ops ops, const nsa::Call&) {
      ops.replace(&nsa::Ops::compress, [change, inner = ops.compress](const nsa::CompressArgs& args) {
        nsa::Compressed blocks = inner(args);
        if (args.k.size(1) == 128) change(blocks);
        return blocks;
      });
      return ops;
    };
  };
  EXPECT_TRUE(codes_of(attention_in_training, with([](nsa::Compressed& c) { c.k = c.k * 1.1; })).contains(kOutput));
  EXPECT_TRUE(codes_of(attention_in_training, with([](nsa::Compressed& c) { c.v = c.v * 0.98; })).contains(kOutput));
  EXPECT_FALSE(codes_of(attention_in_training, with([](nsa::Compressed& c) { c.v = c.v.detach(); })).empty());
}

}  // namespace
}  // namespace suites::parity_cases
