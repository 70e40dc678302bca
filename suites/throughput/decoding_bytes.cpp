// Case decoding_bytes: what a decoding step allocates must not grow with the text as the caches do. Only the scores of
// the compressed blocks may: Hq numbers for every d tokens, where a copied cache takes G (Dk + Dv) for every token.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "suites/codes.hpp"
#include "suites/probes/op_bytes.hpp"
#include "suites/probes/tokens.hpp"
#include "suites/throughput/cases.hpp"

namespace suites::throughput_cases {

namespace {

using harness::Context;
using harness::Json;

// The least of a few steps after a prefill of `tokens`: a cache may grow in one of them, a block may end.
probes::OpBytes least_of_steps(const Subject& subject, const Bench& bench, const at::Tensor& tokens) {
  constexpr int kSteps = 4;
  nsa::decode::Decoder decoder = subject.decoder(bench.instance);
  (void)decoder.prefill(tokens);
  const at::Tensor next = tokens.narrow(1, 0, 1);
  (void)decoder.step(next);  // makes room for more
  probes::OpBytes least;
  least.allocated = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < kSteps; ++i) {
    probes::OpBytes bytes = probes::measure_bytes([&] { (void)decoder.step(next); });
    if (bytes.allocated < least.allocated) least = std::move(bytes);
  }
  return least;
}

}  // namespace

void decoding_bytes(const Subject& subject, Context& context) {
  const at::NoGradGuard no_grad;
  context.phase("model");
  nsa::Config config = subject.config(context);
  config.model.n_layers = std::min<std::int64_t>(config.model.n_layers, 2);
  const nsa::ModelConfig& m = config.model;
  const nsa::Geometry& g = m.nsa;
  // Past the window and past the selection in both, so that these have reached their full width.
  const std::int64_t shorter = std::max(g.w, g.n_sel * g.l_sel) + g.l_sel, longer = 3 * shorter;
  const Bench bench = make_bench(subject, context, config, subject.flags());
  const at::Tensor tokens = probes::text_tokens(context, config, {1, longer}).narrow(1, 0, longer);
  context.phase(fmt::format("steps after {} tokens", shorter));
  const probes::OpBytes before = least_of_steps(subject, bench, tokens.narrow(1, 0, shorter));
  context.phase(fmt::format("steps after {} tokens", longer));
  const probes::OpBytes after = least_of_steps(subject, bench, tokens);

  const auto element = static_cast<double>(at::elementSize(nsa::storage_type(config.train.precision)));
  const auto more = static_cast<double>((longer - shorter) * m.n_layers);
  const double grown = static_cast<double>(after.allocated - before.allocated) / more,
               copy = static_cast<double>(m.n_kv_groups * (m.d_k + m.d_v)) * element;
  context.metric("allocated_per_step", static_cast<double>(after.allocated), "byte");
  context.expect_at_most("growth_of_a_step_to_one_copy_of_a_cache", grown / copy, 0.5, "1", codes::kDecodeCopies,
                         {{"bytes_a_token_and_layer", reports::number(grown)},
                          {"one_copy", reports::number(copy)},
                          {"tokens", Json::array({shorter, longer})},
                          {"allocated_bytes", Json::array({before.allocated, after.allocated})},
                          {"largest", after.largest(5)}});
}

}  // namespace suites::throughput_cases
