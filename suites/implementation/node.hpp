// A call of an implementation as a node of autograd: the forward pass runs there at once, the backward pass when it is
// asked for.
#pragma once

#include <memory>
#include <string>

#include "suites/implementation/client.hpp"

namespace suites::implementation {

// Calls `request.function` with `request.inputs`, and asks for gradients of those that require one. The outputs are on
// the device of the inputs, lse to base e, undefined where the implementation gives none (it says that it has none). o,
// k_cmp and v_cmp carry a graph where an input requires a gradient, unless the implementation's own have none; lse and
// blocks never do. The graph is given back when nobody can ask for it any more.
//
// A second derivative is refused by name, like those of other backends. Throws ImplementationError, also in the
// backward pass; of kind "changed_inputs" when the implementation wrote to what it was given.
[[nodiscard]] Named call(const std::shared_ptr<Client>& client, Request request);

}  // namespace suites::implementation
