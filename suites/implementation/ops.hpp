// An implementation in the place of our own functions, so that every suite judges it.
#pragma once

#include <memory>

#include "nsa/ops.hpp"
#include "nsa/route.hpp"
#include "suites/implementation/client.hpp"

namespace suites::implementation {

// The table with each function replaced that the implementation claims and does not refuse for this call (refusal());
// the others stay. Compression that is learned (phi = mlp) is never claimed.
//
// `attend` is replaced, and goes in one, where "attend" is claimed, or "attention": that one is asked only where k_sel
// is k_win and v_sel is v_win, the same tensors, and no choice of blocks is given; the compressed keys and values must
// be the means of theirs (which is not looked at), and all gradients come to k_sel and v_sel. Another call of it, or
// one for a branch that runs alone, goes as it would without it. Nobody observes the stages of an `attend` that goes in
// one there. Client::calls() tells what really ran.
//
// A function that is called otherwise than `call` says, with what the implementation refuses, throws nsa::Unsupported.
// Throws ImplementationError where the implementation cannot be started.
[[nodiscard]] nsa::Ops with_implementation(nsa::Ops ops, const std::shared_ptr<Client>& client, const nsa::Call& call);

}  // namespace suites::implementation
