#include "nsa/config.hpp"

#include <algorithm>

#include "nsa/config_schema.hpp"

namespace nsa {

namespace {

std::string one_line_each(const std::vector<ConfigError>& errors) {
  std::string text;
  for (const auto& error : errors) text += (text.empty() ? "" : "\n") + to_string(error);
  return text;
}

}  // namespace

std::string_view to_string(Phi phi) {
  switch (phi) {
    case Phi::avg:
      return "avg";
    case Phi::mlp:
      return "mlp";
  }
  return "?";
}

std::string_view to_string(GateActivation gate) {
  switch (gate) {
    case GateActivation::softmax:
      return "softmax";
    case GateActivation::sigmoid:
      return "sigmoid";
  }
  return "?";
}

std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return "fp64";
    case Precision::fp32:
      return "fp32";
    case Precision::bf16:
      return "bf16";
  }
  return "?";
}

std::string_view to_string(CudaGraph use) {
  switch (use) {
    case CudaGraph::automatic:
      return "auto";
    case CudaGraph::on:
      return "true";
    case CudaGraph::off:
      return "false";
  }
  return "?";
}

std::string_view to_string(DataOrder order) {
  switch (order) {
    case DataOrder::sequential:
      return "sequential";
    case DataOrder::random_crops:
      return "random_crops";
    case DataOrder::shuffled:
      return "shuffled";
  }
  return "?";
}

std::string to_string(const ConfigError& error) {
  std::string text = error.where.empty() ? "" : error.where + ": ";
  text += error.key;
  if (!error.value.empty()) text += " = " + error.value;
  return text + ": " + error.allowed;
}

ConfigInvalid::ConfigInvalid(std::vector<ConfigError> all)
    : std::runtime_error(one_line_each(all)), errors(std::move(all)) {}

std::vector<ConfigError> validate(const Config& config) {
  std::vector<ConfigError> errors;
  for (auto& problem : config_problems(config, {})) errors.push_back(std::move(problem.error));
  return errors;
}

std::map<std::string, std::string> flatten(const Config& config) {
  std::map<std::string, std::string> flat;
  for (const auto& key : config_keys()) flat.emplace(key.name, key.format(config));
  return flat;
}

std::map<std::string, std::string> identity(const Config& config) {
  std::map<std::string, std::string> flat;
  for (const auto& key : config_keys())
    if (!key.operational) flat.emplace(key.name, key.format(config));
  return flat;
}

std::int64_t parameter_count(const ModelConfig& m) {
  const std::int64_t branches = 3;
  const std::int64_t q = m.dim * m.n_heads * m.d_k;
  const std::int64_t kv = branches * m.dim * m.n_kv_groups * (m.d_k + m.d_v);
  const std::int64_t o = m.n_heads * m.d_v * m.dim;
  const std::int64_t hidden = std::max<std::int64_t>(1, m.d_k / 2);
  const std::int64_t gate = m.d_k * hidden + hidden + hidden * branches + branches;
  // Position [l, D], fc1 [D, l*D], fc2 [D, D], for keys and for values.
  const auto phi_mlp = [&](std::int64_t width) { return m.nsa.l * width + m.nsa.l * width * width + width * width; };
  const std::int64_t phi = m.phi == Phi::mlp ? phi_mlp(m.d_k) + phi_mlp(m.d_v) : 0;
  const std::int64_t mlp = 2 * m.dim * 4 * m.dim;
  const std::int64_t block = q + kv + o + gate + phi + mlp + 2 * m.dim;  // two RMSNorm weights
  return m.vocab * m.dim + m.n_layers * block + m.dim + m.dim * m.vocab;
}

}  // namespace nsa
