// What the mutants of operations share: a function of the ops table with its arguments changed before, or
// its result after.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include "suites/subject.hpp"

namespace suites {

using OpsMutation = std::function<nsa::Ops(nsa::Ops, const nsa::Call&)>;

template <typename Result, typename Args>
OpsMutation before(nsa::OpFunction<Result, Args> nsa::Ops::*op,
                   std::type_identity_t<std::function<void(Args&)>> change) {
  return [op, change = std::move(change)](nsa::Ops ops, const nsa::Call&) {
    ops.replace(op, [inner = ops.*op, change](const Args& args) {
      Args own = args;
      change(own);
      return inner(own);
    });
    return ops;
  };
}

template <typename Result, typename Args>
OpsMutation after(nsa::OpFunction<Result, Args> nsa::Ops::*op,
                  std::type_identity_t<std::function<void(Result&, const Args&)>> change) {
  return [op, change = std::move(change)](nsa::Ops ops, const nsa::Call&) {
    ops.replace(op, [inner = ops.*op, change](const Args& args) {
      Result result = inner(args);
      change(result, args);
      return result;
    });
    return ops;
  };
}

// The function itself, which may call what it replaces.
template <typename Result, typename Args>
OpsMutation instead(
    nsa::OpFunction<Result, Args> nsa::Ops::*op,
    std::type_identity_t<std::function<Result(const Args&, const nsa::OpFunction<Result, Args>&)>> function) {
  return [op, function = std::move(function)](nsa::Ops ops, const nsa::Call&) {
    ops.replace(op, [inner = ops.*op, function](const Args& args) { return function(args, inner); });
    return ops;
  };
}

inline std::function<void(const harness::FaultSite&)> plant_in_ops(const std::shared_ptr<Seams>& seams,
                                                                   OpsMutation mutation) {
  return [seams, mutation = std::move(mutation)](const harness::FaultSite&) { seams->ops.push_back(mutation); };
}

}  // namespace suites
