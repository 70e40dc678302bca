// The cases of parity, one file a family; suite.cpp plans them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/context.hpp"
#include "suites/oracle/backends.hpp"
#include "suites/subject.hpp"

namespace suites::parity_cases {

struct OpRun {
  std::string way;  // way_named()
  nsa::Op op = nsa::Op::compress;
  nsa::Phi phi = nsa::Phi::avg;
  at::ScalarType dtype = at::kFloat;
  bool attention = false;  // attend, with a choice of its own (oracle::OpShape::attention)
  std::int64_t S = 0;      // tokens; 0: 2w + l' + 3
};
// Within the limits of its way.
[[nodiscard]] oracle::OpShape shape_of(const harness::Context& context, const Subject& subject, const OpRun& run);

// budgets.cpp: outputs and gradients against the fp64 reference.
void against_reference(harness::Context& context, const Subject& subject, const OpRun& run);
void against_reference(harness::Context& context, const Subject& subject, const OpRun& run, const oracle::OpCase& c);
// A NaN in an input must stay visible in the output wherever the reference shows it; of an implementation also one in
// what comes back to an output, in the gradients.
void nan_stays_visible(harness::Context& context, const Subject& subject, const OpRun& run);
// Scores that are exactly equal: ties go to the lower block.
void equal_scores(harness::Context& context, const Subject& subject, const OpRun& run);
// The same inputs give the same bits, forward and backward, where that is claimed.
void repeatable(harness::Context& context, const Subject& subject, const OpRun& run);

// causality.cpp: rows <= t do not move, bit for bit, when only tokens after t change.
void causality(harness::Context& context, const Subject& subject, const OpRun& run);

// The first of the first `kept` rows along `dim` in which two tensors differ in any bit that shows; -1 when none does.
// NaN in the same place is no difference: that it is there is another finding.
[[nodiscard]] std::int64_t first_moved_row(const at::Tensor& before, const at::Tensor& after, std::int64_t dim,
                                           std::int64_t kept);

// rounded_once.cpp, rounded_layer.cpp: the parts around attention in bf16, alone.
void rounded_once(harness::Context& context, const Subject& subject);

// lengths.cpp: attention as it trains in one shape: compression, choice of blocks, values and gradients against fp64,
// tile by tile.
struct AttentionPoint {
  std::int64_t S = 1;
  nsa::Precision precision = nsa::Precision::fp32;
  std::int64_t B = 1;
  std::vector<std::int64_t> documents = {};    // lengths that sum up to S, in a packed batch (B = 1); none: not packed
  std::optional<nsa::Geometry> geometry = {};  // in place of the configuration's
};
void attention_at(harness::Context& context, const Subject& subject, const AttentionPoint& point);
// The shape of a training step: train.seq_len, train.batch_size, train.precision, train.packed.
void attention_in_training(harness::Context& context, const Subject& subject);
// Documents of awkward lengths in one packed batch.
void attention_packed(harness::Context& context, const Subject& subject);
// The paper's geometry (l 32, d 16, l' 64, n 16, w 512) or, where the subject has that or a longer window, a small one:
// a backend's chunks are longer than the window of the one and shorter than that of the other.
void attention_of_another_geometry(harness::Context& context, const Subject& subject);
// The same at every edge of a block, of the window and of the choice.
void attention_at_boundaries(harness::Context& context, const Subject& subject);

// packed.cpp: a packed batch equals its documents one by one.
void packed(harness::Context& context, const Subject& subject, const OpRun& run);

// identities.cpp: relations that need no oracle.
[[nodiscard]] const std::vector<std::string>& identity_names();
void identity(harness::Context& context, const Subject& subject, const std::string& name);

// pairwise.cpp: each backend against each other, dense and packed; and the whole model's gradients by each.
void pairwise(harness::Context& context, const Subject& subject, const OpRun& run);
void model_pairwise(harness::Context& context, const Subject& subject, const std::string& model);

// xpath.cpp: every way through the model against the forward pass of training. `model` as in prepared.hpp.
void xpath(harness::Context& context, const Subject& subject, const std::string& model, nsa::Precision precision);

// reads.cpp: the keys that a decoding step reads.
void reads(harness::Context& context, const Subject& subject);

// model_identities.cpp: relations that the whole model keeps.
[[nodiscard]] const std::vector<std::string>& model_identity_names();
void model_identity(harness::Context& context, const Subject& subject, const std::string& name);
// RoPE by itself: how far the products of rotated queries and keys move when both start at position a.
using Rotate = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& rotations)>;
struct ShiftError {
  double relative = -1;              // the largest difference, relative to the products' RMS
  std::int64_t a = 0, t = 0, j = 0;  // where
};
[[nodiscard]] ShiftError shift_error(const Rotate& turn, const nsa::ModelConfig& model, at::Device device,
                                     at::ScalarType type, std::uint64_t seed);

// oracle_cases.cpp, decoding_cases.cpp: the whole model against an independent one (oracle/plain_model).
struct WholeStep {
  std::string model;  // "subject", "small"
  nsa::Precision precision = nsa::Precision::fp32;
  std::string tokens = "2w+lsel+3";  // or another length by its meaning; "documents": a packed batch
  bool by_reference = false;         // every function by the reference, else by this run's flags
};
// A training step: choices, every stage, logits, loss, every parameter's gradient.
void whole_step(harness::Context& context, const Subject& subject, const WholeStep& step);
// Prefill and steps: every stage of every token.
void whole_decoding(harness::Context& context, const Subject& subject, const WholeStep& step);
// Every constant of a configuration and every flag that changes what is computed: another value moves the logits, and
// the product follows the oracle, in fp64.
void whole_constants(harness::Context& context, const Subject& subject);

// whole_model.cpp
void model_causality(harness::Context& context, const Subject& subject);
void model_packed(harness::Context& context, const Subject& subject);
void model_batch_of_two(harness::Context& context, const Subject& subject);
void model_watched(harness::Context& context, const Subject& subject);

}  // namespace suites::parity_cases
