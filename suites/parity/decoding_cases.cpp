// Case whole_decoding: prefill, steps and sequential() against the plain model and the plain decoder.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/text.hpp"
#include "suites/codes.hpp"
#include "suites/parity/against_oracle.hpp"
#include "suites/parity/cases.hpp"
#include "suites/parity/ways.hpp"
#include "suites/probes/unwritten_memory.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;
using harness::Json;

constexpr const char* kKeys = "layers.{}.attention.cmp.k";

// A text of S tokens, of which P come in a prefill and the others one by one.
struct Walk {
  std::int64_t P, S;
  nsa::decode::Options room = {};  // of the caches
  double rope_scale = 1;           // times the flags' own
};

// From nothing, in caches that must grow; across the moment at which the window begins to forget, where the first did
// not come so far; and after a prompt that ends inside a block of either kind, with positions that decoding must scale
// as the pass at once does.
std::vector<Walk> walks(const nsa::Geometry& g) {
  constexpr std::int64_t kMostSteps = 96;
  const std::int64_t S = length_of(g);
  std::vector<Walk> all = {{0, std::min(S, kMostSteps), {.capacity = 1}}};
  if (all[0].S < g.w + g.l) all.push_back({std::max<std::int64_t>(1, g.w - g.l), g.w + g.l});
  all.push_back({S - g.l_sel + 1, S, {}, 4});
  return all;
}

// Takes compressed keys and values out of a pass's stages, because steps do not show them; gives the keys by layer.
std::vector<at::Tensor> without_keys(oracle::Stages& stages, std::int64_t layers) {
  std::vector<at::Tensor> keys(static_cast<std::size_t>(layers));
  for (std::size_t layer = 0; layer < keys.size(); ++layer)
    for (const auto& [name, value] : stages)
      if (name == fmt::format(kKeys, layer)) keys[layer] = value;
  std::erase_if(stages, [](const auto& s) { return s.first.ends_with("cmp.k") || s.first.ends_with("cmp.v"); });
  return keys;
}

// The plain decoder over all tokens: its stages, and its compressed keys by layer.
std::pair<oracle::Pass, std::vector<at::Tensor>> in_steps(Context& context, const oracle::PlainModel& model,
                                                          const at::Tensor& tokens,
                                                          const std::vector<at::Tensor>& blocks) {
  oracle::PlainDecoder decoder(model);
  std::vector<oracle::Pass> passes;
  for (std::int64_t t = 0; t < tokens.size(1); ++t) {
    std::vector<at::Tensor> held;
    for (const at::Tensor& layer : blocks) held.push_back(layer.defined() ? layer.narrow(1, t, 1) : layer);
    passes.push_back(decoder.step(tokens.narrow(1, t, 1), held));
    if (t % 16 == 0) context.progress();
  }
  oracle::Pass all;
  for (std::size_t i = 0; i < passes[0].stages.size(); ++i) {
    std::vector<at::Tensor> rows;
    for (const oracle::Pass& pass : passes) rows.push_back(pass.stages[i].second);
    all.stages.emplace_back(passes[0].stages[i].first, at::cat(rows, 1));
  }
  std::vector<at::Tensor> keys;
  for (std::size_t layer = 0; layer < blocks.size(); ++layer) keys.push_back(decoder.compressed_keys(layer));
  return {std::move(all), std::move(keys)};
}

// What decoding with these blocks must show; compressed keys stand apart, by layer, because steps do not show them.
struct DecodedAnswer {
  oracle::Pass wanted, rounded;
  std::vector<at::Tensor> keys;
};
DecodedAnswer answer_of(Context& context, const Sides& sides, const at::Tensor& tokens,
                        const std::vector<at::Tensor>& blocks, bool in_steps_alone) {
  // What roundings cost is the same in one pass, which is quicker.
  DecodedAnswer answer{{}, oracle::forward(sides.naive(), tokens, {}, blocks), {}};
  if (in_steps_alone) {
    std::tie(answer.wanted, answer.keys) = in_steps(context, sides.exact(), tokens, blocks);
  } else {  // the same too, in exact arithmetic
    answer.wanted = oracle::forward(sides.exact(), tokens, {}, blocks);
    answer.keys = without_keys(answer.wanted.stages, sides.plain.config.n_layers);
  }
  return answer;
}

// The first stage that parts; "" where none does.
std::string first_stage(const Sides& sides, const Shown& shown, const DecodedAnswer& answer) {
  std::map<std::string, double> largest;
  return first_parting(shown.stages, answer.wanted, answer.rounded, sides.storage(), largest).stage;
}

// A fresh decoder is right where one that was reset is not.
void report_reset(Context& context, const std::string& stage, const std::string& how, const std::string& what) {
  context.finding(
      codes::kWaysDiffer,
      fmt::format("{}: {} is wrong after Decoder::reset() ({}), and right in a fresh decoder", what, stage, how),
      {{"after", "reset()"}, {"stage", stage}, {"how", how}});
}

// The last tokens by Decoder::sequential, after a prefill of the others.
bool expect_sequential(Context& context, nsa::decode::Decoder& decoder, const at::Tensor& tokens,
                       const oracle::Pass& exact, const oracle::Pass& naive, const Compared& compared) {
  const std::int64_t S = tokens.size(1), last = std::min<std::int64_t>(4, S - 1);
  decoder.reset();
  (void)decoder.prefill(tokens.narrow(1, 0, S - last));
  const at::Tensor logits = decoder.sequential(tokens.narrow(1, S - last, last));
  const auto rows = [&](const oracle::Pass& pass) { return pass.logits.detach().narrow(1, S - last, last); };
  const oracle::RmsVerdict verdict =
      judge_rms({logits, rows(exact), rows(naive)}, oracle::rms_law(logits.scalar_type()), 2);
  Json evidence = verdict.evidence();
  evidence["stage"] = "logits";
  evidence["way"] = "Decoder::sequential()";
  return context.expect("sequential() goes on where a prefill ends", verdict.good(),
                        fmt::format("{}: the logits of the last {} tokens by sequential() part from the oracle: {:.3g} "
                                    "RMS of {:.3g}, {:.3g} times what is allowed",
                                    compared.what, last, verdict.error, verdict.scale, verdict.ratio()),
                        compared.code, evidence);
}

}  // namespace

void whole_decoding(Context& context, const Subject& subject, const WholeStep& step) try {
  const at::NoGradGuard no_grad;
  const nsa::Config config = three_layers(context, subject, step.model, Stream::narrow);
  const nsa::ModelConfig& model = config.model;
  for (const Walk& walk : walks(model.nsa)) {
    nsa::EffectiveFlags flags = subject.flags();
    flags.rope_scale *= walk.rope_scale;
    Sides sides = both_sides(context, subject, config, step.precision, flags);
    const std::string what = fmt::format("{}, {}, {} tokens in a prefill and {} in steps", step.model,
                                         nsa::to_string(step.precision), walk.P, walk.S - walk.P);
    context.phase(what);
    // Two sequences: what a step keeps of one must not be the other's.
    const at::Tensor tokens = prompt(context, config, {2, walk.S});
    const auto decoded = [&](nsa::decode::Decoder& decoder) {
      const probes::StaleMemory unwritten;  // a cache's rows that nobody wrote are NaN
      Shown shown;
      shown.stages = decode(context, decoder, tokens, walk.P).stages;
      (void)without_keys(shown.stages, model.n_layers);
      return shown;
    };
    nsa::decode::Decoder decoder = subject.decoder(sides.product.instance, walk.room),
                         fresh = subject.decoder(sides.product.instance, walk.room);
    {
      const probes::StaleMemory unwritten;
      double& rope_scale = sides.product.instance.model->runtime->flags.rope_scale;
      const double own = std::exchange(rope_scale, 3 * rope_scale);
      (void)decode(context, decoder, tokens.narrow(0, 0, 1).flip(1), walk.S - 1);
      rope_scale = own;
      decoder.reset();
    }
    Shown shown;
    try {
      shown = decoded(decoder);
    } catch (const std::exception& error) {
      (void)decoded(fresh);  // what a fresh one throws too is no matter of the reset
      report_reset(context, "what its caches hold", base::first_line(error.what()), what);
      return;
    }
    const DecodedAnswer answer = answer_of(context, sides, tokens, shown.choices(model.n_layers), walk.P == 0);
    const auto& [wanted, rounded, keys] = answer;
    if (const std::string stage = first_stage(sides, shown, answer); !stage.empty()) {
      const Shown anew = decoded(fresh);
      const bool right =
          first_stage(sides, anew, answer_of(context, sides, tokens, anew.choices(model.n_layers), walk.P == 0))
              .empty();
      if (right)
        return report_reset(context, stage, "another text was decoded before, alone and with another NSA_ROPE_SCALE",
                            what);
    }
    const std::vector<at::Tensor> blocks = shown.choices(model.n_layers);
    // The scores are the oracle's here: a step does not show its compressed keys.
    const PassBy again = [&](const oracle::PlainModel& other, const oracle::Documents&) {
      context.progress();
      return oracle::forward(other, tokens, {}, blocks);
    };
    const Compared compared{.what = what,
                            .code = codes::kWaysDiffer,
                            .tie = step.precision == nsa::Precision::bf16 ? 0.1 : 1e-4,
                            .again = again,
                            .evidence = walk.P > 0 ? Json{{"prefill", walk.P}} : Json::object()};
    if (!expect_stages(context, sides, shown, wanted, rounded, compared)) return;
    if (walk.P > 0 && !expect_sequential(context, decoder, tokens, wanted, rounded, compared)) return;
    for (std::size_t layer = 0; layer < keys.size(); ++layer)
      shown.stages.emplace_back(fmt::format(kKeys, layer), keys[layer]);
    if (!expect_choices(context, sides, shown, compared)) return;
  }
} catch (const BrokenChoice& broken) {
  context.finding(codes::kDecodeChoice,
                  fmt::format("{}, {}: {}", step.model, nsa::to_string(step.precision), broken.what()),
                  {{"model", step.model}, {"stage", "blocks"}, {"chosen", broken.what()}});
}

}  // namespace suites::parity_cases
