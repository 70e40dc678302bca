#include "harness/codes.hpp"

#include <algorithm>
#include <stdexcept>

namespace harness {

namespace {
using reports::Severity;

constexpr Code kOwnCodes[] = {
    {codes::kCrash, "The case crashed its process", "crash", Severity::block,
     "memory corruption, a failed assertion (abort), an exception in another thread, or a stack overflow",
     "read the stacks in the evidence; run the repro command with --isolation none under a debugger"},
    {codes::kHang, "The case stopped making progress", "crash", Severity::block,
     "a deadlock, an endless loop, a wait for a device or a process that never answers",
     "read the stacks in the evidence; raise --hang if the case is only slow"},
    {codes::kVanished, "The worker exited without ending its case", "crash", Severity::block,
     "something in the case called exit() or _exit(), or a library gave up quietly",
     "run the repro command with --isolation none and break on exit and _exit"},
    {codes::kException, "The case threw an exception", "crash", Severity::block,
     "an error of the code under test, a missing precondition, or a bug of the case itself",
     "read the message; run the repro command with --isolation none in a debugger with `catch throw`"},
    {codes::kProtocol, "The worker wrote something that is not an event of its case", "harness", Severity::block,
     "code in the worker writes to a file descriptor that is not its own, or memory corruption",
     "run the repro command; look for raw writes to descriptors in the code that the case calls"},
    {codes::kTimeout, "The case was still running at its absolute time limit", "crash", Severity::block,
     "far slower than intended on this machine, or work that grows without end",
     "compare its phases with an earlier run, read the stacks; raise --timeout if the machine is known to be slow"},
    {codes::kWorkerStart, "The worker could not be started", "harness", Severity::block,
     "libraries that do not load, no memory or process slots left, or a program that dies while it starts",
     "run the doctor verb and read the worker's log beside the report"},
    {codes::kUnhealthy, "The case left its process unusable", "crash", Severity::block,
     "a sticky device error: an illegal address or a failed assertion in a kernel that ran during the case",
     "run the repro command under compute-sanitizer, with CUDA_LAUNCH_BLOCKING=1 to find the kernel"},
    {codes::kLostOutput, "Output of the run did not arrive", "harness", Severity::warn,
     "a full disk, or a reader that went away, behind standard error",
     "read this report instead; free the disk, or send the output where it can be written, and run again for exit code "
     "0"},
    {codes::kOutOfMemory, "Out of memory", "memory", Severity::block,
     "a machine or container with less memory than the case needs, other programs that take it, or code that asks for "
     "far more than it should",
     "compare the bytes in the evidence with the machine's; free memory or raise the container's limit; where the "
     "amount itself is wrong, look at what was allocated"},
    {codes::kKilled, "The worker was killed by SIGKILL, not by this program", "crash", Severity::block,
     "somebody's kill -9, a job scheduler's limit, a container that was stopped",
     "run it again; if it comes back, ask who ends processes on this machine"},
    {codes::kBusyMachine, "Times were taken on a busy machine", "environment", Severity::warn,
     "other programs, users or virtual machines that use the same CPUs",
     "take rates as lower bounds and times as upper bounds; end the other programs and run again before you compare "
     "them with anything"},
};
}  // namespace

std::span<const Code> own_codes() { return kOwnCodes; }

Severity severity_of(const Code& code, std::optional<Severity> said, bool report_gates) {
  const Severity severity = said.value_or(code.severity);
  return report_gates && code.category == "performance" ? std::min(severity, Severity::warn) : severity;
}

CodeTable::CodeTable(std::span<const Code> of_program) : codes_(std::begin(kOwnCodes), std::end(kOwnCodes)) {
  for (const Code& code : of_program) {
    if (find(code.id) != nullptr) throw std::logic_error("finding code " + std::string(code.id) + " is declared twice");
    codes_.push_back(code);
  }
}

const Code* CodeTable::find(std::string_view id) const {
  const auto at = std::find_if(codes_.begin(), codes_.end(), [&](const Code& code) { return code.id == id; });
  return at == codes_.end() ? nullptr : &*at;
}

}  // namespace harness
