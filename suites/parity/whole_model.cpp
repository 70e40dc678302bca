#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "suites/codes.hpp"
#include "suites/oracle/compare.hpp"
#include "suites/parity/cases.hpp"
#include "suites/parity/documents.hpp"
#include "suites/parity/prepared.hpp"
#include "suites/probes/fixed_order.hpp"
#include "suites/probes/stages.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;
using Stages = std::vector<std::pair<std::string, at::Tensor>>;

Prepared prepared_in(const Context& context, const Subject& subject, nsa::Precision precision) {
  return parity_cases::prepare(context, subject, shallow(context, subject), precision, subject.flags());
}

struct Watched {
  at::Tensor logits;
  Stages stages;
};
Watched watch(nsa::LanguageModelImpl& model, const at::Tensor& tokens) {
  Watched watched;
  model.runtime->observe = [&](std::string_view name, const at::Tensor& value) {
    watched.stages.emplace_back(name, value.detach());
  };
  watched.logits = model.forward(tokens);
  model.runtime->observe = nullptr;
  return watched;
}

// How many rows of a stage belong to tokens up to t, along its row dimension; 0 when its rows are neither tokens nor
// compressed blocks.
std::int64_t rows_up_to(const at::Tensor& value, std::int64_t row_dim, std::int64_t S, std::int64_t t,
                        const nsa::Geometry& g) {
  if (row_dim < 0) return 0;
  if (value.size(row_dim) == S) return t + 1;
  return value.size(row_dim) == nsa::compressed_blocks(g, S) ? nsa::compressed_blocks(g, t + 1) : 0;
}

}  // namespace

void model_causality(Context& context, const Subject& subject) {
  const at::NoGradGuard no_grad;
  const nsa::Precision precision = run_precision(context);
  Prepared prepared = prepared_in(context, subject, precision);
  const nsa::Geometry& g = prepared.config.model.nsa;
  const std::int64_t S = length_of(g);
  const at::Tensor tokens = prompt(context, prepared.config, {1, S});
  const Watched before = watch(prepared.model(), tokens);

  for (const std::int64_t t : {g.l, g.w, S / 2, S - 2}) {
    context.phase(fmt::format("other tokens after {}", t));
    at::Tensor changed = tokens.clone();
    changed.slice(1, t + 1).add_(1).remainder_(prepared.config.model.vocab);
    const Watched after = watch(prepared.model(), changed);
    for (std::size_t i = 0; i < before.stages.size(); ++i) {
      const auto& [name, value] = before.stages[i];
      const std::int64_t dim = probes::stage_layout(name, value.dim()).row;
      const std::int64_t kept = rows_up_to(value, dim, S, t, g);
      if (kept == 0) continue;
      const std::int64_t row = first_moved_row(value, after.stages.at(i).second, dim, kept);
      if (row < 0) continue;
      const probes::Stage where = probes::parse_stage(name);
      context.expect("rows up to t do not move when tokens after t change", false,
                     fmt::format("model: {} row {} depends on tokens after {}{}", name, row, t,
                                 where.branch.empty() ? "" : " (branch " + where.branch + ")"),
                     codes::kFutureLeak,
                     {{"stage", name},
                      {"layer", where.layer},
                      {"branch", where.branch},
                      {"row", row},
                      {"tokens_changed_after", t}});
      return;
    }
  }
  context.expect("rows up to t do not move when tokens after t change", true, "", codes::kFutureLeak);
}

void model_packed(Context& context, const Subject& subject) {
  const at::NoGradGuard no_grad;
  Prepared prepared = prepared_in(context, subject, nsa::Precision::fp64);
  const std::vector<std::int64_t> lengths = document_lengths(prepared.config.model.nsa);
  const std::int64_t S = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const at::Tensor tokens = prompt(context, prepared.config, {1, S});
  report_cu_seqlens(context, {{"op", "model"}, {"document_lengths", lengths}}, [&] {
    context.phase("packed");
    const at::Tensor together = prepared.model().forward(tokens, cumulative(lengths));
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < lengths.size(); begin += lengths[i++]) {
      if (lengths[i] == 0) continue;
      context.phase(fmt::format("document {}", i));
      const at::Tensor alone = prepared.model().forward(tokens.slice(1, begin, begin + lengths[i]).contiguous());
      const oracle::Verdict verdict = oracle::near(together.slice(1, begin, begin + lengths[i]), alone, 1e6);
      harness::Json evidence = verdict.evidence();
      evidence["document"] = i;
      evidence["document_lengths"] = lengths;
      if (!context.expect(
              fmt::format("document {} in the packed batch = alone", i), verdict.good(),
              fmt::format("model: document {} of a packed batch differs by {:.3g} from itself alone", i, verdict.error),
              codes::kPackedDiffers, evidence)) {
        return;
      }
    }
  });
}

void model_batch_of_two(Context& context, const Subject& subject) {
  const at::NoGradGuard no_grad;
  Prepared prepared = prepared_in(context, subject, nsa::Precision::fp64);
  const at::Tensor tokens = prompt(context, prepared.config, {2, length_of(prepared.config.model.nsa)});
  const at::Tensor together = prepared.model().forward(tokens);
  const at::Tensor alone =
      at::cat({prepared.model().forward(tokens.slice(0, 0, 1)), prepared.model().forward(tokens.slice(0, 1, 2))});
  const oracle::Verdict verdict = oracle::near(together, alone, 1e6);
  context.expect("a batch of two = two batches of one", verdict.good(),
                 fmt::format("model: logits of a batch of two differ by {:.3g}", verdict.error), codes::kIdentity,
                 verdict.evidence());
}

// Every probe of this harness looks into a model by observing it, so what is looked at must be what runs otherwise: the
// same bits, forward and backward, also where our own kernels compute attention in one. ATen's sums on a GPU come in a
// fixed order for it; of a gradient whose order cannot be fixed (of an embedding in bf16) no more is asked than what a
// second watched model has in common with the first.
void model_watched(Context& context, const Subject& subject) {
  const probes::FixedOrder fixed(context.cuda());
  const nsa::Precision precision = run_precision(context);
  Prepared alone = prepared_in(context, subject, precision), watched = prepared_in(context, subject, precision);
  const at::Tensor text = prompt(context, alone.config, {2, length_of(alone.config.model.nsa) + 1});
  const auto step = [&](Prepared& prepared) {
    const at::Tensor loss = prepared.model().loss(text);
    loss.backward();
    return loss.detach();
  };
  const auto expect = [&](const std::string& what, const at::Tensor& value, const at::Tensor& wanted, double ulps) {
    const oracle::Verdict verdict = oracle::near(value, wanted, ulps);
    harness::Json evidence = verdict.evidence();
    evidence["of"] = what;
    return context.expect(what + " of a watched model = of one that nobody watches", verdict.good(),
                          fmt::format("model: {} differs by {:.3g} when the model is watched; allowed {:.3g}", what,
                                      verdict.error, verdict.bound),
                          codes::kIdentity, evidence);
  };
  std::int64_t stages = 0;
  const auto watched_step = [&](Prepared& prepared) {
    prepared.model().runtime->observe = [&](std::string_view, const at::Tensor&) { ++stages; };
    const at::Tensor loss = step(prepared);
    prepared.model().runtime->observe = nullptr;
    return loss;
  };
  context.phase("alone");
  const at::Tensor loss = step(alone);
  context.phase("watched");
  bool good = expect("loss", watched_step(watched), loss, 0);
  context.metric("stages that were shown", static_cast<double>(stages), "");

  std::optional<Prepared> again;
  // By how much a gradient differs between two watched models.
  const auto repetition_ulps = [&](const std::string& parameter, const at::Tensor& first) {
    if (!again) {
      context.phase("watched again");
      again.emplace(prepared_in(context, subject, precision));
      (void)watched_step(*again);
    }
    const oracle::Verdict noise = oracle::near(again->model().named_parameters()[parameter].grad(), first, 1);
    if (!(noise.error > 0 && std::isfinite(noise.error))) return 0.0;
    // One repetition shows little of what many orders may do: a rounding here and there.
    constexpr double kAbove = 4, kRoundings = 2;
    return std::max(kAbove * noise.error / noise.bound, kRoundings);
  };
  const auto wanted = alone.model().named_parameters();
  for (const auto& parameter : watched.model().named_parameters()) {
    if (!good) break;  // the first is enough
    const at::Tensor own = parameter.value().grad(), other = wanted[parameter.key()].grad();
    if (!own.defined() && !other.defined()) continue;  // its branch is not computed
    const bool same = oracle::near(own, other, 0).good();
    good = expect("gradient of " + parameter.key(), own, other, same ? 0 : repetition_ulps(parameter.key(), own));
  }
}

}  // namespace suites::parity_cases
