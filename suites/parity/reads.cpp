// The law of reads: at token t a decoding step reads the visible compressed blocks, the tokens up to t of the chosen
// blocks, and min(w, t+1) tokens of the window; no less, no more, and after any prefill.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "suites/codes.hpp"
#include "suites/parity/cases.hpp"
#include "suites/parity/prepared.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;
using harness::Json;
using nsa::ForcedBranch;
using nsa::decode::Reads;

// The tokens up to t of the chosen blocks [B,1,G,n]; -1 when batch rows or groups differ.
std::int64_t chosen_tokens(const at::Tensor& blocks, std::int64_t t, const nsa::Geometry& g) {
  const at::Tensor number = blocks.to(at::kCPU, at::kLong);
  const at::Tensor tokens = (t + 1 - number * g.l_sel).clamp(0, g.l_sel).masked_fill(number.lt(0), 0).sum(-1);
  return tokens.eq(tokens.flatten()[0]).all().item<bool>() ? tokens.flatten()[0].item<std::int64_t>() : -1;
}

// What a layer that shows these blocks (undefined: the branch is not computed) must read at t.
Reads law(const nsa::ModelConfig& model, ForcedBranch forced, const at::Tensor& blocks, std::int64_t t) {
  const auto computed = [&](ForcedBranch branch) { return forced == ForcedBranch::none || forced == branch; };
  Reads reads;
  if (computed(ForcedBranch::cmp) || computed(ForcedBranch::sel))
    reads.compressed = nsa::compressed_blocks(model.nsa, t + 1);
  if (blocks.defined()) reads.selected = chosen_tokens(blocks, t, model.nsa);
  if (computed(ForcedBranch::win)) reads.window = std::min(model.nsa.w, t + 1);
  return reads;
}

Json to_json(const Reads& reads) {
  return {{"compressed", reads.compressed}, {"selected", reads.selected}, {"window", reads.window}};
}

struct ReadWalk {
  Context& context;
  Prepared& prepared;
  nsa::decode::Decoder decoder;
  Json table = Json::array();
};

// One step, and what its layers must have read.
std::vector<Reads> step(ReadWalk& walk, const at::Tensor& token) {
  const nsa::ModelConfig& model = walk.prepared.config.model;
  const auto& runtime = walk.prepared.model().runtime;
  std::vector<at::Tensor> blocks(static_cast<std::size_t>(model.n_layers));
  runtime->observe = [&](std::string_view name, const at::Tensor& value) {
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if (name == fmt::format("layers.{}.attention.blocks", i)) blocks[i] = value;
  };
  const std::int64_t t = walk.decoder.length();
  (void)walk.decoder.step(token);
  runtime->observe = nullptr;
  std::vector<Reads> wanted;
  for (const at::Tensor& chosen : blocks) wanted.push_back(law(model, runtime->flags.forced_branch, chosen, t));
  return wanted;
}

// Steps after a prefill of P until `end`, or until one breaks the law.
void follow(ReadWalk& walk, const at::Tensor& tokens, std::int64_t P, std::int64_t end) {
  const std::int64_t every = std::max<std::int64_t>(1, tokens.size(1) / 8);
  for (std::int64_t t = P; t < end; ++t) {
    if (t % 16 == 0) walk.context.progress();
    const std::vector<Reads> wanted = step(walk, tokens.narrow(1, t, 1));
    const std::vector<Reads>& got = walk.decoder.reads();
    if ((t + 1) % every == 0)
      walk.table.push_back(
          {{"prefill", P}, {"token", t}, {"reads", to_json(got.at(0))}, {"full_attention_reads", t + 1}});
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const Json seen = to_json(got.at(i)), due = to_json(wanted[i]);
      if (seen == due) continue;
      walk.context.expect_equal(fmt::format("reads of layer {} at token {} after a prefill of {}", i, t, P), seen, due,
                                codes::kReadsLaw, {{"prefill", P}, {"token", t}, {"layer", i}});
      return;
    }
  }
  walk.context.expect_equal(fmt::format("tokens from {} to {} read what the law says, up to token", P, end),
                            walk.decoder.length(), end, codes::kReadsLaw);
}

}  // namespace

void reads(Context& context, const Subject& subject) {
  const at::NoGradGuard no_grad;
  Prepared prepared = prepare(context, subject, shallow(context, subject), nsa::Precision::fp32, subject.flags());
  const nsa::Geometry& g = prepared.config.model.nsa;
  const std::int64_t S = length_of(g);
  const at::Tensor tokens = prompt(context, prepared.config, {2, S});
  Json tables = Json::array();
  for (const std::int64_t P : {std::int64_t{0}, g.l + 1, S / 2, S - g.l_sel}) {
    context.phase(fmt::format("reads after a prefill of {}", P));
    ReadWalk walk{context, prepared, subject.decoder(prepared.instance), Json::array()};
    if (P > 0) (void)walk.decoder.prefill(tokens.narrow(1, 0, P));
    follow(walk, tokens, P, P == 0 ? S : std::min(S, P + g.l_sel));
    tables.insert(tables.end(), walk.table.begin(), walk.table.end());
    if (P == 0)
      context.metric(
          "bytes of the caches, for a token and layer",
          static_cast<double>(walk.decoder.bytes()) / static_cast<double>(2 * S * prepared.config.model.n_layers), "B");
  }
  context.fact("reads", tables);
}

}  // namespace suites::parity_cases
