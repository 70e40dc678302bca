// The tensors of a first step on N ranks against those of one process.
//
// The tolerance follows from what differs: the order in which rounded products are summed. A matrix product of n terms
// has, in whatever order it is summed, an error of at most n u times the sum of its terms' sizes (Higham, Accuracy and
// Stability of Numerical Algorithms, 3.1; u: half the distance of 1 to the next number). An error passes through the
// products of a forward and a backward pass one after another, so it grows with their number at most: that of the
// stages of one layer, times the layers, twice.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nsa/config.hpp"
#include "suites/distributed/agreement.hpp"

namespace suites::distributed_ranks {

using Tensors = std::map<std::string, at::Tensor>;  // as RankWatch keeps them

// u * terms * stages, relative to the sum of the sizes of what is added. `rows`: of the batch of a step.
[[nodiscard]] double tolerance(const nsa::Config& config, std::int64_t rows);

// How far losses of a run may part for that, relative to the loss. An error d of a gradient g changes AdamW's step by
// rate * d * epsilon / (|g| + epsilon)^2 and the loss by |g| times that, which is at most rate * d / 4 for whatever g;
// so of all elements and steps. A hundred times that is allowed, for gradients of later steps that are larger than
// those from which a step's direction was made. Says something in fp64 alone. `first`: of one process.
[[nodiscard]] double tolerance_of_a_run(const nsa::Config& config, const StepSeen& first, std::int64_t elements,
                                        double tol);
[[nodiscard]] std::int64_t elements_of(const Tensors& tensors);  // of the model

struct Measured {
  double worst = 0;       // largest error, in units of what is allowed
  double relative = 0;    // and of the size of the right value
  std::string parameter;  // where
};

// Every gradient after the reduction. What is allowed of one: `tol` times the sum of the norms of the ranks' shares.
// Tells the worst, and by what factor all are wrong where one factor explains them.
[[nodiscard]] Disagreements gradients_agree(const Tensors& seen, const Tensors& wanted, const Records& records,
                                            double tol, Measured& measured);
// The norm that ranks tell (of the first step) against that of the reduced gradients, summed in fp64.
[[nodiscard]] Disagreements norm_of_the_sum(const Tensors& seen, const Records& records, double tol);
// The first update against AdamW's first step with the clipped, reduced gradients.
[[nodiscard]] Disagreements update_follows(const Tensors& seen, const nsa::TrainConfig& train, double lr, double tol,
                                           Measured& measured);
// The blocks that each rank chose for its rows are those that one process chose for the same rows.
// `seen`: of every rank. Tells where there is nothing to compare.
[[nodiscard]] Disagreements blocks_agree(const std::vector<Tensors>& seen, const Records& records,
                                         const Tensors& wanted, const RankRecord& alone);

}  // namespace suites::distributed_ranks
