// Where every thread of this process is: name, state and what it waits for in the kernel, from /proc, and its call
// stack, which each thread writes down itself when it is sent a signal. A thread that does not answer within half a
// second is shown without one.
#pragma once

#include <string>

namespace nsa::train {

// One at a time. Takes SIGRTMIN+5 for a moment.
[[nodiscard]] std::string all_stacks();

}  // namespace nsa::train
