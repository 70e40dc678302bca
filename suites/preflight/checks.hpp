// The checks of the preflight suite, one function each; preflight.cpp makes cases of them. What is compared comes in as
// arguments where a test must be able to hand in something else.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <exception>
#include <functional>
#include <string>

#include "harness/context.hpp"
#include "nsa/flags.hpp"
#include "suites/probes/gpu_processes.hpp"
#include "suites/subject.hpp"

namespace suites::preflight_checks {

using harness::Context;
using harness::Json;

// What an exception says, without the stack that LibTorch's carry behind the first line.
[[nodiscard]] inline std::string reason_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// -- software.cpp
// `found` of the loaded library against `built`, the headers that the program was compiled with ("2.11.0").
void torch_version(Context& context, const std::string& built, const std::string& found);
[[nodiscard]] std::string torch_version_found();  // from the library itself, not from a header
// The id compiled in against the hash of the sources, both as the supervisor found them.
void build_id(Context& context);
void flags(Context& context, const nsa::Environment& environment);
void facts(Context& context);  // threads, allocator: for the reader

// -- gpu.cpp
struct CudaState {
  int driver = 0;   // as cudaDriverGetVersion: 13000; 0 without a driver
  int runtime = 0;  // as cudaRuntimeGetVersion
  int devices = 0;
  std::string error;       // of counting the devices; "" when that worked
  bool no_device = false;  // it failed because no device is visible, which is not a fault
};
[[nodiscard]] CudaState cuda_state();
// A run on the CPU while a driver is there but does not work must not look like a machine without a GPU.
void cuda_present(Context& context, const CudaState& state);
void driver(Context& context, const CudaState& state);
void cuda_works(Context& context);  // needs a GPU: one kernel and two copies
void foreign_processes(Context& context, const probes::GpuCensus& census, const probes::ForeignProcesses& foreign,
                       std::int64_t own_bytes);
void gpu_processes(Context& context);  // needs a GPU: takes the census and calls the former

// -- flash.cpp
enum class FlashKind { dense, window, varlen };
void flash_refuses(const Subject& subject, Context& context);  // on the CPU, with its reason; routing takes the next
void flash_works(const Subject& subject, Context& context, FlashKind kind);  // needs a GPU

// -- run_folder.cpp
void halt_files(Context& context);

// -- configuration.cpp
void configuration(const Subject& subject, Context& context);

// -- first_batch.cpp
using Reader = std::function<at::Tensor()>;
// Reads in a thread of its own, so that a stalled storage cannot stall the run; `what` names the source.
void first_batch(Context& context, const std::string& what, Reader reader, std::chrono::milliseconds deadline);
void first_batch_of_data(const Subject& subject, Context& context);

}  // namespace suites::preflight_checks
