#include "nsa/parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "nsa/train/checkpoint.hpp"
#include "nsa/train/tensor_file.hpp"

namespace nsa {

namespace {

using Tensors = std::map<std::string, at::Tensor>;

Tensors read_all(const std::filesystem::path& file) {
  train::TensorFileReader reader(file);
  const auto format = reader.metadata().find("format");
  if (format != reader.metadata().end() && *format == train::kCheckpointFormat)
    return train::read_checkpoint(file).tensors;
  Tensors tensors;
  while (true) {
    auto tensor = reader.next();
    if (!tensor) return tensors;
    tensors.emplace(std::move(tensor->name), std::move(tensor->value));
  }
}

std::string difference(const std::string& name, const at::Tensor& here, const at::Tensor& given) {
  if (!given.defined()) return fmt::format("parameter {} is undefined there", name);
  if (given.sizes() != here.sizes())
    return fmt::format("parameter {} is [{}] there and [{}] here", name, fmt::join(given.sizes(), ", "),
                       fmt::join(here.sizes(), ", "));
  if (!given.is_floating_point())
    return fmt::format("parameter {} is {} there, no floating-point number", name, c10::toString(given.scalar_type()));
  return "";
}

}  // namespace

Tensors load_tensors(const std::filesystem::path& file, std::string_view prefix) {
  Tensors all = read_all(file);
  if (prefix.empty()) return all;
  Tensors found;
  for (auto& [name, tensor] : all)
    if (name.starts_with(prefix)) found.emplace(name.substr(prefix.size()), std::move(tensor));
  if (found.empty())
    throw train::TensorFileInvalid(fmt::format("{} has no tensor whose name begins with '{}'; it has {}", file.string(),
                                               prefix, all.empty() ? "none at all" : all.begin()->first + ", ..."));
  return found;
}

ParametersMismatch::ParametersMismatch(std::vector<std::string> all)
    : std::invalid_argument(fmt::format("not the parameters of this model: {}", fmt::join(all, "; "))),
      differences(std::move(all)) {}

void load_parameters(const LanguageModel& model, const Tensors& tensors) {
  if (model.is_empty()) throw std::invalid_argument("load_parameters: the model holds nothing; allowed: a made one");
  Tensors own;
  for (const auto& parameter : model->named_parameters()) own.emplace(parameter.key(), parameter.value());

  std::vector<std::string> differences;
  for (const auto& [name, here] : own) {
    const auto given = tensors.find(name);
    const auto found = given == tensors.end() ? fmt::format("parameter {} is missing there", name)
                                              : difference(name, here, given->second);
    if (!found.empty()) differences.push_back(found);
  }
  for (const auto& [name, tensor] : tensors)
    if (!own.contains(name)) differences.push_back(fmt::format("parameter {} is unknown here", name));
  if (!differences.empty()) throw ParametersMismatch(std::move(differences));

  const at::NoGradGuard no_grad;
  for (auto& [name, parameter] : own) parameter.copy_(tensors.at(name));
}

}  // namespace nsa
