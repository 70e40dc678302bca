// The checks of the preflight suite, one function each; suite.cpp makes cases of them. What is compared comes in as
// arguments where a test must be able to hand in something else.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/context.hpp"
#include "nsa/flags.hpp"
#include "suites/machine/memory_plan.hpp"
#include "suites/probes/gpu_processes.hpp"
#include "suites/subject.hpp"

namespace suites::preflight_checks {

using harness::Context;
using harness::Json;

// -- keys.cpp
// Every key of a configuration file reaches the field that it is named after, and no other, and what is set from
// outside wins over the file. `load` takes the file's text.
using LoadConfig = std::function<nsa::Config(const std::string& yaml, const std::vector<nsa::Override>& overrides)>;
void configuration_keys(Context& context, const LoadConfig& load);

// -- software.cpp
// `found` of the loaded library against `built`, the headers that the program was compiled with ("2.11.0").
void torch_version(Context& context, const std::string& built, const std::string& found);
[[nodiscard]] std::string torch_version_found();  // from the library itself, not from a header
// The id compiled in against the hash of the sources, both as the supervisor found them.
void build_id(Context& context, const Json& planned);  // planned: a run's provenance
// `environment`: as the worker sees it now; it must be what the supervisor recorded.
void flags(Context& context, const nsa::Environment& environment);
// A training step of the configuration, as it is routed on the device of this run.
[[nodiscard]] nsa::Call training_call(const Subject& subject, const Context& context);
// What a flag asks for by name is what that step takes; else the route's reason.
void flags_obeyed(Context& context, const nsa::EffectiveFlags& flags, const nsa::Call& step);
// The build holds kernels for the GPU of that step, unless the flags want none. `compiled`: compiled_architectures().
void kernels(Context& context, const nsa::EffectiveFlags& flags, const nsa::Call& step, std::string_view compiled);
void facts(Context& context);  // threads, allocator: for the reader
// Libraries that were loaded against those that the program was compiled with, by name.
struct LibraryVersion {
  std::string name;           // "CUDA runtime"
  std::string built, loaded;  // "13.0"; "" when it cannot be told
  bool same_major_is_enough = false;
};
[[nodiscard]] std::vector<LibraryVersion> library_versions();
void libraries(Context& context, const std::vector<LibraryVersion>& versions);

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
void gpu_processes(const Subject& subject, Context& context);  // needs a GPU: takes the census and calls the former
void gpu_state(Context& context);  // needs a GPU: at rest, and its clocks after a moment of work

// -- flash.cpp
enum class FlashKind { dense, window, varlen };
void flash_refuses(const Subject& subject, Context& context);  // on the CPU, with its reason; routing takes the next
void flash_works(const Subject& subject, Context& context, FlashKind kind);  // needs a GPU

// -- run_folder.cpp
void halt_files(Context& context);
void run_folder_space(Context& context);
// The folder of preflight.train_folder: control files of any run, and room for its checkpoints.
void train_folder(const Subject& subject, Context& context);

// -- surroundings.cpp: what the harness recorded of the environment, and the host
void variables(Context& context);
void threads(Context& context);
void pins(Context& context);                      // preflight.expect_environment
void fix(Context& context, const Json& planned);  // preflight.expect_commit
void host(Context& context);
void load(Context& context);  // who else uses the CPUs

// -- memory.cpp
void memory_estimate(const Subject& subject, Context& context);
// The law that was stored for this step on this device: that of its flags, and where a gathered selection would hold
// too much, that of the masked one. Nothing when either is missing, or when the step recomputes activations. Throws
// std::runtime_error for a file that cannot be read.
[[nodiscard]] std::optional<machine::FittedLaw> stored_law(const machine::PlannedStep& step, const std::string& device);

// -- configuration.cpp
void configuration(const Subject& subject, Context& context);

// -- first_batch.cpp
using Reader = std::function<at::Tensor()>;
// Reads in a thread of its own, so that a stalled storage cannot stall the run; `what` names the source.
void first_batch(Context& context, const std::string& what, Reader reader, std::chrono::milliseconds deadline);
void first_batch_of_data(const Subject& subject, Context& context);

}  // namespace suites::preflight_checks
