// How a run of nsa-train ends. The same numbers as nsa-validate's where the same thing happened.
#pragma once

#include <stdexcept>

namespace nsa::train {

enum class ExitCode {
  finished = 0,
  anomaly = 1,         // a loss or gradient that is not finite, or divergence; see .HALT
  usage = 2,           // command line, configuration, flags, or a folder or checkpoint of something else
  end_of_data = 3,     // the data ended before the steps did
  infrastructure = 4,  // disk, data, memory or device; also the launcher's set-up
  halted = 5,          // somebody's .HALT file
  hung = 6,            // no progress and no work for train.hang_timeout_s
  internal = 10,       // an error of the program
  replaced = 12,       // all steps are made, some with the reference's values for what was not finite (strict asserts)
  peer = 13,  // several ranks: one was lost (killed); of a rank: another failed, whose code says why, or was lost
  interrupted = 130,  // SIGINT, after a checkpoint
  terminated = 143,   // SIGTERM, SIGHUP, SIGUSR1 or SIGXCPU, or a rank's starter died; after a checkpoint
};

// Something that only whoever started the run can put right.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// The machine does not offer what was asked for.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace nsa::train
