// The subject: the product under test behind one interface, built from configuration and flags, with the seams through
// which a planted fault (faults/) may change it. Suites make everything that they test through a Subject; the oracle
// (nsa::reference) is called directly and is never wrapped.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "harness/context.hpp"
#include "nsa/config.hpp"
#include "nsa/decode/decoder.hpp"
#include "nsa/dispatch.hpp"
#include "nsa/flags.hpp"
#include "nsa/model/make.hpp"
#include "suites/implementation/client.hpp"
#include "suites/locations.hpp"
#include "suites/probes/gpu_processes.hpp"
#include "suites/rank_moment.hpp"

namespace suites {

// Where the product can be changed from outside. Empty on a real run. Nothing here reaches a check.
struct Seams {
  // Wraps the ops table that was assembled for a call.
  std::vector<std::function<nsa::Ops(nsa::Ops, const nsa::Call&)>> ops;
  // Wraps the functions of a decoding step.
  std::vector<std::function<nsa::decode::StepOps(nsa::decode::StepOps)>> decode;
  // Changes a model after it was initialised (or hooks its parameters).
  std::vector<std::function<void(nsa::LanguageModelImpl&)>> model;
  // Changes the configuration that the product loaded.
  std::vector<std::function<void(nsa::Config&)>> configuration;
  // Changes what the supervisor is said to have found of program and machine when it planned the run.
  std::vector<std::function<void(harness::Json&)>> planned;
  // Changes what the driver is said to answer: who holds memory of the GPU.
  std::vector<std::function<void(probes::GpuCensus&)>> gpu_processes;
  // Does something at a moment of a rank (distributed/rank.cpp), or changes what there is then.
  std::vector<std::function<void(RankMoment&)>> ranks;
  // The names of what is planted: a process of its own that is to test the same product plants the same.
  std::vector<std::string> names;
};

struct ModelOptions {
  nsa::ModelConfig config;
  nsa::EffectiveFlags flags;
  nsa::Precision precision = nsa::Precision::fp32;
  at::Device device = at::kCPU;
  std::uint64_t seed = 0;
};

struct Instance {
  nsa::LanguageModel model{nullptr};
  std::shared_ptr<nsa::Dispatcher> dispatcher;  // routes taken, strict fallbacks
};

class Subject {
 public:
  explicit Subject(std::shared_ptr<const Seams> seams) : seams_(std::move(seams)), made_(std::make_shared<Made>()) {}

  // The configuration that the setting `model` names: a file, a name in configs/models, or "auto" (tiny on the CPU,
  // m7c_125m on a GPU). Throws harness::UsageError / nsa::ConfigInvalid.
  // std::runtime_error where the file no longer holds what the run has planned.
  [[nodiscard]] nsa::Config config(const harness::Context& context) const;
  // The same, whatever was planned.
  [[nodiscard]] nsa::Config config_as_it_is(const harness::Context& context) const;
  // Context::planned_provenance().
  [[nodiscard]] harness::Json planned(const harness::Context& context) const;
  [[nodiscard]] probes::GpuCensus gpu_processes(probes::GpuCensus taken) const;
  void pass(RankMoment& moment) const;
  // For the command of another process alone: no check may look at it.
  [[nodiscard]] const std::vector<std::string>& planted_names() const { return seams_->names; }
  // The flags of this process's environment, resolved.
  [[nodiscard]] nsa::EffectiveFlags flags() const;
  // A model, initialised from `seed` (torch's generator is seeded with it).
  [[nodiscard]] Instance model(const ModelOptions& options) const;
  // A decoder of that model, with empty caches.
  [[nodiscard]] nsa::decode::Decoder decoder(const Instance& instance, nsa::decode::Options options = {}) const;
  // The seven functions as the product would assemble them for `call` (under NSA_STRICT_ASSERTS with its fallback), or
  // those of one backend.
  [[nodiscard]] nsa::Ops ops(const nsa::EffectiveFlags& flags, const nsa::Call& call) const;
  [[nodiscard]] nsa::Ops ops(nsa::Backend backend, const nsa::Call& call) const;

  // From here on, for this subject and its copies, the functions that an implementation claims are its own in every
  // table and model (implementation/ops.hpp); null: ours again.
  void judge(std::shared_ptr<implementation::Client> client) const;
  [[nodiscard]] std::shared_ptr<implementation::Client> implementation() const;

  // The dispatchers of the models and tables that this subject and its copies have made since the
  // last call (records.hpp).
  [[nodiscard]] std::vector<std::shared_ptr<nsa::Dispatcher>> take_dispatchers() const;

 private:
  [[nodiscard]] std::shared_ptr<nsa::Dispatcher> make_dispatcher(const nsa::EffectiveFlags& flags) const;

  struct Made {
    std::mutex mutex;
    std::vector<std::shared_ptr<nsa::Dispatcher>> dispatchers;
    std::shared_ptr<implementation::Client> implementation;
  };
  [[nodiscard]] nsa::Ops wrap(nsa::Ops ops, const nsa::Call& call) const;
  std::shared_ptr<const Seams> seams_;
  std::shared_ptr<Made> made_;
};

[[nodiscard]] at::Device device_of(const harness::Context& context);  // that a case runs on
// What a run computes in where a case does not say otherwise: bf16 on a GPU, fp32 on the CPU.
[[nodiscard]] nsa::Precision run_precision(const harness::Context& context);

}  // namespace suites
