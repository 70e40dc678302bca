// The catalogue's parts beside the first faults (catalogue.cpp) and those of attention as a whole (attend.cpp). Each
// row says what is wrong, which codes name it and which suites are to find it; what smoke does not find stays as it is.
#pragma once

#include <memory>
#include <vector>

#include "suites/faults/planted.hpp"
#include "suites/subject.hpp"

namespace suites {

[[nodiscard]] std::vector<Planted> operation_mutants(
    const std::shared_ptr<Seams>& seams);  // a function of the ops table
[[nodiscard]] std::vector<Planted> selection_mutants(const std::shared_ptr<Seams>& seams);  // which blocks are chosen
[[nodiscard]] std::vector<Planted> model_mutants(
    const std::shared_ptr<Seams>& seams);  // weights, gradients, the routes
[[nodiscard]] std::vector<Planted> decoding_mutants(const std::shared_ptr<Seams>& seams);  // a step of decoding
[[nodiscard]] std::vector<Planted> cost_mutants(const std::shared_ptr<Seams>& seams);      // time and memory
[[nodiscard]] std::vector<Planted> deployment_mutants(
    const std::shared_ptr<Seams>& seams);  // what the reported days had besides: the machine, the deployment, one hang
[[nodiscard]] std::vector<Planted> process_mutants(
    const std::shared_ptr<Seams>& seams);  // worker, run folder, settings
[[nodiscard]] std::vector<Planted> rank_mutants(
    const std::shared_ptr<Seams>& seams);  // one of several processes that train one model

}  // namespace suites
