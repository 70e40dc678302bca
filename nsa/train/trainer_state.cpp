// The state of a trainer: out, and in again after it was compared with what the trainer is made of.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nsa/train/trainer.hpp"

namespace nsa::train {

namespace {

constexpr std::string_view kModel = "model/", kOptimizer = "optimizer/", kRandom = "rng/";

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

// The tensors of one part, without its prefix.
std::map<std::string, at::Tensor> part(const TrainState& state, std::string_view prefix) {
  std::map<std::string, at::Tensor> found;
  for (const auto& [name, tensor] : state.tensors)
    if (name.starts_with(prefix)) found.emplace(name.substr(prefix.size()), tensor);
  return found;
}

// Everything of `given` that is not as in `own`, key by key, in words.
std::vector<std::string> config_differences(const std::map<std::string, std::string>& own,
                                            const nlohmann::json& given) {
  std::vector<std::string> found;
  const auto tell = [&](const std::string& key, const std::string& there, const std::string& here) {
    if (there != here) found.push_back(fmt::format("{} is {} there and {} here", key, there, here));
  };
  for (const auto& [key, here] : own) tell(key, given.value(key, "(absent)"), here);
  for (const auto& [key, there] : given.items())
    if (!own.contains(key)) tell(key, there.is_string() ? there.get<std::string>() : there.dump(), "(absent)");
  return found;
}

std::vector<std::string> tensor_differences(const std::map<std::string, at::Tensor>& own,
                                            const std::map<std::string, at::Tensor>& given, std::string_view what) {
  std::vector<std::string> found;
  for (const auto& [name, here] : own) {
    const auto there = given.find(name);
    if (there == given.end())
      found.push_back(fmt::format("{} {} is missing there", what, name));
    else if (describe(there->second) != describe(here))
      found.push_back(
          fmt::format("{} {} is {} there and {} here", what, name, describe(there->second), describe(here)));
  }
  for (const auto& [name, there] : given)
    if (!own.contains(name)) found.push_back(fmt::format("{} {} is unknown here", what, name));
  return found;
}

std::map<std::string, at::Tensor> parameters_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> found;
  for (const auto& parameter : module.named_parameters()) found.emplace(parameter.key(), parameter.value().detach());
  return found;
}

}  // namespace

TrainState Trainer::state() const {
  if (is_ahead()) throw std::logic_error("trainer: the next step has begun; the parameters may be its own already");
  if (updating_) throw std::logic_error("trainer: an update was cut off; the parameters belong to no step");
  TrainState state;
  const auto put = [&](std::string_view prefix, const std::map<std::string, at::Tensor>& tensors) {
    for (const auto& [name, tensor] : tensors)
      state.tensors.emplace(std::string(prefix) + name, tensor.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
  };
  put(kModel, parameters_of(*model_));
  put(kOptimizer, optimizer_.state());
  put("", origin_.random);
  state.facts = {
      {"step", steps_made_},  {"loss", nullptr},        {"config", identity(Config{model_->config, config_, ""})},
      {"data", origin_.data}, {"tokens", tokens_seen_}, {"divergence", divergence_.state()}};
  if (last_loss_) state.facts["loss"] = *last_loss_;
  return state;
}

void Trainer::load(const TrainState& state) {
  if (is_ahead()) throw std::logic_error("trainer: a state cannot be loaded while the next step is under way");
  const auto parameters = parameters_of(*model_);
  const auto given_parameters = part(state, kModel), given_optimizer = part(state, kOptimizer);
  auto wrong = config_differences(identity(Config{model_->config, config_, ""}), state.facts.at("config"));
  const auto more = [&](const std::vector<std::string>& found) {
    wrong.insert(wrong.end(), found.begin(), found.end());
  };
  if (wrong.empty()) {  // otherwise they would say the same once more, tensor by tensor
    more(tensor_differences(parameters, given_parameters, "parameter"));
    more(tensor_differences(optimizer_.state(), given_optimizer, "optimizer state"));
  }
  const nlohmann::json& position = state.facts.at("data");
  if (position.is_null() != (stream_ == nullptr))
    wrong.push_back(fmt::format("the data is {} there and {} here", position.is_null() ? "no stream" : "a stream",
                                stream_ ? "a stream" : "no stream"));
  if (!wrong.empty()) throw StateMismatch(fmt::format("not the state of this run: {}", fmt::join(wrong, "; ")));
  try {
    if (stream_) stream_->seek(position);
  } catch (const std::invalid_argument& error) {
    throw StateMismatch(fmt::format("not the data of this run: {}", error.what()));
  }

  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters) parameter.copy_(given_parameters.at(name));
  optimizer_.load(given_optimizer);
  std::map<std::string, at::Tensor> random;
  for (const auto& [name, tensor] : part(state, kRandom)) random.emplace(std::string(kRandom) + name, tensor);
  set_random_states(random, parameters.begin()->second.device());
  steps_made_ = state.step();
  last_loss_.reset();
  if (state.facts.at("loss").is_number()) last_loss_ = state.facts.at("loss").get<double>();
  tokens_seen_ = state.facts.value("tokens", std::int64_t{0});  // absent in checkpoints of older builds, as the next
  seconds_spent_ = state.facts.value("seconds", 0.0);
  divergence_.restore(state.facts.value("divergence", nlohmann::json()));
  updating_ = false;
  origin_ = origin();
}

}  // namespace nsa::train
