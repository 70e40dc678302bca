// Case decoding_bytes: what a decoding step allocates must not grow with the text as the caches do. Only what is
// computed with every compressed block may: its scores, Hq numbers for every d tokens, and where the storage type is
// narrower than that of the sums its keys and values in the wider one. A copied cache takes G (Dk + Dv) for every
// token, one of the compressed blocks a d-th of that. And what is kept of a token is its selected keys and values and
// its share of a block, no more: the window and the rows that the next block is made of do not grow with the text.
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

struct Decoding {
  probes::OpBytes least;   // of a few steps after the prefill: a cache may grow in one of them, a block may end
  std::int64_t kept = 0;   // bytes, of the prefill
  std::int64_t rings = 0;  // of those, what has a limit: the window's rows, and those that the next block is made of
};

Decoding decode(const Subject& subject, const Bench& bench, const at::Tensor& tokens) {
  constexpr int kSteps = 4;
  // Room for this text and no more, or what is kept would be a matter of doubling.
  nsa::decode::Decoder decoder = subject.decoder(bench.instance, {.capacity = 1});
  Decoding decoding;
  (void)decoder.prefill(tokens);
  for (const nsa::decode::LayerCache& cache : decoder.caches()) {
    decoding.kept += cache.bytes();
    decoding.rings += cache.k_win.bytes() + cache.v_win.bytes() + cache.k_raw.bytes() + cache.v_raw.bytes();
  }
  const at::Tensor next = tokens.narrow(1, 0, 1);
  (void)decoder.step(next);  // makes room for more
  decoding.least.allocated = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < kSteps; ++i) {
    probes::OpBytes bytes = probes::measure_bytes([&] { (void)decoder.step(next); });
    if (bytes.allocated < decoding.least.allocated) decoding.least = std::move(bytes);
  }
  return decoding;
}

// What a step may allocate of a compressed block in a layer: a score for each query head, in fp32 at least, in each
// operation of two softmaxes (of the choice and of the branch) and of the sums between; its keys for the choice, and
// its keys and values for the branch, where they must be widened first.
double bytes_of_a_block(const nsa::ModelConfig& m, double element) {
  constexpr double kScores = 12, kWide = 4;
  const double wide = std::max(element, kWide);
  const double scores = kScores * static_cast<double>(m.n_heads) * wide;
  const double widened = element < wide ? static_cast<double>(m.n_kv_groups * (2 * m.d_k + m.d_v)) * wide : 0;
  return scores + widened;
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
  const Decoding before = decode(subject, bench, tokens.narrow(1, 0, shorter));
  context.phase(fmt::format("steps after {} tokens", longer));
  const Decoding after = decode(subject, bench, tokens);

  const auto element = static_cast<double>(at::elementSize(nsa::storage_type(config.train.precision)));
  const auto more = static_cast<double>((longer - shorter) * m.n_layers);
  const double grown = static_cast<double>(after.least.allocated - before.least.allocated) / more,
               copy = static_cast<double>(m.n_kv_groups * (m.d_k + m.d_v)) * element;
  context.metric("allocated_per_step", static_cast<double>(after.least.allocated), "byte");
  context.expect_at_most("growth_of_a_step_to_one_copy_of_a_cache", grown / copy, 0.5, "1", codes::kDecodeCopies,
                         {{"bytes_a_token_and_layer", reports::number(grown)},
                          {"one_copy", reports::number(copy)},
                          {"tokens", Json::array({shorter, longer})},
                          {"allocated_bytes", Json::array({before.least.allocated, after.least.allocated})},
                          {"largest", after.least.largest(5)}});
  const double blocks = grown * static_cast<double>(g.d), due = bytes_of_a_block(m, element);
  context.expect_at_most("growth_of_a_step_to_what_a_compressed_block_needs", blocks / due, 1, "1",
                         codes::kDecodeCopies,
                         {{"bytes_a_block_and_layer", reports::number(blocks)},
                          {"needed", reports::number(due)},
                          {"tokens", Json::array({shorter, longer})},
                          {"largest", after.least.largest(5)}});

  const double kept = static_cast<double>(after.kept - before.kept) / more,
               needed = copy * (1 + 1.0 / static_cast<double>(g.d));
  context.metric("kept_per_token_and_layer", kept, "byte");
  context.expect_at_most("what_is_kept_of_a_token_to_what_decoding_needs", kept / needed, 1.25, "1",
                         codes::kCacheKeepsAll,
                         {{"bytes_a_token_and_layer", reports::number(kept)},
                          {"needed", reports::number(needed)},
                          {"tokens", Json::array({shorter, longer})},
                          {"kept_bytes", Json::array({before.kept, after.kept})}});

  const double rings = copy * static_cast<double>((g.w + g.l) * m.n_layers);
  context.expect_at_most("what_the_rings_take_to_what_they_hold", static_cast<double>(after.rings) / rings, 1.05, "1",
                         codes::kCacheKeepsAll,
                         {{"ring_bytes", after.rings}, {"needed_bytes", rings}, {"rows", Json::array({g.w, g.l})}});
}

}  // namespace suites::throughput_cases
