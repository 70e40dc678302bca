// The worker's side: runs cases one by one and tells what happens while it happens. Only here (and in what a case
// calls) may torch and CUDA be touched.
#pragma once

#include <functional>
#include <string_view>

#include "harness/protocol.hpp"

namespace harness {

using EventSink = std::function<void(const Json&)>;

// Plants the order's faults, then runs its cases, telling `sink`. Returns early when the program says that the
// process is no longer healthy. Throws only what `sink` throws, and std::logic_error for an order that does
// not fit the program.
void run_cases(const Program& program, const Settings& settings, const WorkOrder& order, const EventSink& sink);

// `call` runs when a worker ends by itself, which it does without destructors: for what would outlive it.
void at_worker_end(std::function<void()> call);

// For whom this worker waits from now on, in words ("the answer of ..."); "": for nobody. Who has that worker's fate in
// his hands is told when it dies of a signal meanwhile. It costs a small write to a file; where there is no worker,
// nothing.
void waits_for(std::string_view whom);

// The hidden verb: order from standard input, events to Process::kEventFd. Ends the process when all is said; returns
// an exit status when it could not be.
[[nodiscard]] int worker_main(const Program& program);

}  // namespace harness
