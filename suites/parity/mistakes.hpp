// What explains that a product parts from the oracle: the oracle itself with one mistake made on purpose, which then
// gives what the product gave. Looked for only where something parts already, so a right product pays nothing.
#pragma once

#include <functional>
#include <string>

#include "suites/oracle/plain_model.hpp"

namespace suites::parity_cases {

// What is added to a message: "; it is what it would be if ...", or "".
[[nodiscard]] std::string told(const std::string& as_if);

// The oracle's pass by another model and other documents, over the tokens and with the blocks of the one that parted.
using PassBy = std::function<oracle::Pass(const oracle::PlainModel&, const oracle::Documents&)>;

// Of the first stage that parts. `shown` is the product's, `exact` and `naive` the passes it was compared with.
struct PartedStage {
  std::string name;
  at::Tensor shown;
  const oracle::Pass& exact;
  const oracle::Pass& naive;
  at::ScalarType storage;
};
// The mistake that gives the shown values, a sentence without a full stop ("the MLP's activation is GELU, not SiLU");
// "" where none of those that are known does.
[[nodiscard]] std::string mistake_in(const PartedStage& parted, const oracle::PlainModel& model,
                                     const oracle::Documents& documents, const PassBy& pass);

// Of the first parameter, from the loss downwards, whose gradient parts.
struct PartedGradient {
  std::string parameter;
  at::Tensor shown, exact, naive;  // exact, naive: fp64
  double independent;              // roundings (oracle::RmsLaw)
  at::ScalarType storage;
};
// The same ("the gradient that comes back through the gate's input is lost"): one path's share of the gradient is lost,
// halved, counted twice or turned round, or the whole is scaled, or rows of it are lost.
[[nodiscard]] std::string mistake_in(const PartedGradient& parted, const oracle::PlainModel& model,
                                     const oracle::Documents& documents, const PassBy& pass, const at::Tensor& tokens);

}  // namespace suites::parity_cases
