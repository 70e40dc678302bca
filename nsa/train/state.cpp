#include "nsa/train/state.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

namespace nsa::train {

namespace {

std::map<std::string, at::Generator> generators(at::Device device) {
  std::map<std::string, at::Generator> found = {{"rng/cpu", at::detail::getDefaultCPUGenerator()}};
  if (device.is_cuda()) found.emplace("rng/cuda", at::globalContext().defaultGenerator(device));
  return found;
}

}  // namespace

std::map<std::string, at::Tensor> random_states(at::Device device) {
  std::map<std::string, at::Tensor> states;
  for (auto& [name, generator] : generators(device)) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states.emplace(name, generator.get_state());
  }
  return states;
}

void set_random_states(const std::map<std::string, at::Tensor>& states, at::Device device) {
  for (auto& [name, generator] : generators(device)) {
    const auto state = states.find(name);
    if (state == states.end()) continue;  // a run that moved from the CPU to a GPU: that generator was never used
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state->second);
  }
}

}  // namespace nsa::train
