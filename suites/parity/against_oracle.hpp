// The product's whole model beside the plain model (oracle/plain_model): the same parameters, the same text, the
// product's choice of blocks. What is compared, and by which bound, stands here; the cases are in cases.hpp.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "suites/oracle/plain_model.hpp"
#include "suites/oracle/rms.hpp"
#include "suites/parity/mistakes.hpp"
#include "suites/parity/prepared.hpp"

namespace suites::parity_cases {

// The subject's configuration ("subject") or the small one ("small") with three layers. Narrow: the stream and the MLP
// of a wide model are cut to 128, attention keeps its heads and widths; for what does not hang on the stream's width.
enum class Stream { as_it_is, narrow };
[[nodiscard]] nsa::Config three_layers(const harness::Context& context, const Subject& subject,
                                       const std::string& model, Stream stream = Stream::as_it_is);

// Both models. The parameters are no initial values: at those norms are 1, biases 0 and gates uniform, and the stream
// is so large that an epsilon is nothing; a fault there would change nothing.
struct Sides {
  Prepared product;
  oracle::PlainModel plain;  // the product's parameters in their own dtype
  nsa::Precision precision = nsa::Precision::fp32;

  [[nodiscard]] oracle::PlainModel exact() const;  // in fp64
  // In the product's precision, angles in fp32: what its roundings cost a plain computation.
  [[nodiscard]] oracle::PlainModel naive() const;
  [[nodiscard]] at::ScalarType storage() const { return nsa::storage_type(precision); }
};
[[nodiscard]] Sides both_sides(const harness::Context& context, const Subject& subject, const nsa::Config& config,
                               nsa::Precision precision, const nsa::EffectiveFlags& flags);

// What a pass of the product showed.
struct Shown {
  oracle::Stages stages;
  at::Tensor loss;                              // undefined after a pass that only goes forward
  std::map<std::string, at::Tensor> gradients;  // by parameter; undefined where none arrives
  // By layer, for the plain model; empty where no blocks were shown.
  [[nodiscard]] std::vector<at::Tensor> choices(std::int64_t layers) const;
};
[[nodiscard]] Shown step_of(Sides& sides, const at::Tensor& tokens, const nsa::CuSeqlens& cu_seqlens = {});
[[nodiscard]] Shown forward_of(Sides& sides, const at::Tensor& tokens);

// The first stage, in the order of the pass, in which a product's pass parts from the oracle.
struct Parting {
  std::string stage;  // "" when there is none
  oracle::RmsVerdict verdict;
  // Stages of the same layer that need nothing of it and part as well ("q", "cmp.k"): what they share is the cause.
  std::vector<std::string> beside = {};
};
// Over all stages of `exact`. `largest`: error / bound by the stage's name without its layer, kept up to date.
[[nodiscard]] Parting first_parting(const oracle::Stages& shown, const oracle::Pass& exact, const oracle::Pass& naive,
                                    at::ScalarType storage, std::map<std::string, double>& largest);

// Records it: the choices of blocks, by the scores of the product's own queries and compressed keys (each document by
// itself), and every stage. A finding names layer, stage and first row. Returns whether all is well.
struct Compared {
  std::string what;  // of messages: "subject, fp32, S = 83"
  std::string_view code;
  oracle::Documents documents = {};
  double tie = 1e-5;  // gap between scores, of a row's largest, within which another choice is as good
  PassBy again = {};  // to look for the mistake that explains what parts; empty: nobody looks
  harness::Json evidence = harness::Json::object();  // of what parts, besides its own
};
bool expect_choices(harness::Context& context, const Sides& sides, const Shown& shown, const Compared& compared);
bool expect_stages(harness::Context& context, const Sides& sides, const Shown& shown, const oracle::Pass& exact,
                   const oracle::Pass& naive, const Compared& compared);

}  // namespace suites::parity_cases
