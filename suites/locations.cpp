#include "suites/locations.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/nearest.hpp"
#include "build_info.hpp"
#include "suites/providers.hpp"

namespace suites {

namespace {

// Every key of a model's configuration, to be set above the file.
void add_keys_of_model(std::vector<harness::SettingSpec>& settings) {
  for (const auto& [key, value] : nsa::flatten(nsa::Config{}))
    settings.push_back({.key = key,
                        .type = harness::SettingType::text,
                        .default_value = "",
                        .meaning = "in place of what the model's configuration says; empty: as it says",
                        .allowed = "what a configuration may say there (configs/README.md)"});
}

}  // namespace

std::vector<harness::SettingSpec> common_settings() {
  using enum harness::SettingType;
  std::vector<harness::SettingSpec> settings = {
      {.key = "model",
       .type = text,
       .default_value = "auto",
       .meaning = "model configuration: a file, a name in configs/models, or auto",
       .allowed = "auto (tiny on the CPU, m7c_125m on a GPU), a name in configs/models, or a path to a YAML file",
       .path_to = harness::PathTo::file},
      {.key = "data",
       .type = text,
       .default_value = "",
       .meaning = "text that training reads as bytes; empty: train.data of the model's configuration",
       .allowed = "a path",
       .path_to = harness::PathTo::file},
      {.key = "implementation",
       .type = text,
       .default_value = "",
       .meaning = "adapter of an implementation in Python that is judged instead of our own functions (adapters/)",
       .allowed = "a path to a .py file, or empty",
       .path_to = harness::PathTo::file},
      {.key = "python",
       .type = text,
       .default_value = "python3",
       .meaning = "interpreter in which that implementation runs: its own torch, its own packages",
       .allowed = "a path, or a name in PATH",
       .path_to = harness::PathTo::file},
      {.key = "python_timeout_s",
       .type = real,
       .default_value = "60",
       .meaning =
           "seconds that one call of that implementation may take before it counts as hanging; run.hang_s does not "
           "count while it is waited for",
       .allowed = "0.1 or more",
       .minimum = 0.1,
       .maximum = 86400},
      {.key = "trace",
       .type = boolean,
       .default_value = "false",
       .meaning = "record the bits of every stage of training and forward cases, for compare --trace; slow on a GPU",
       .allowed = "true or false"},
  };
  add_keys_of_model(settings);
  return settings;
}

std::vector<harness::SizeSetting> common_sizes() {
  return {{"model.n_layers"}, {"model.dim"},        {"model.n_heads"}, {"model.n_kv_groups"},
          {"model.d_k"},      {"model.d_v"},        {"model.vocab"},   {"nsa.w"},
          {"nsa.n_sel", 3},   {"nsa.l_sel"},        {"nsa.l"},         {"nsa.d"},
          {"train.seq_len"},  {"train.batch_size"}, {"train.steps"},   {"train.accumulate_grad_batches"}};
}

bool judges_implementation(const harness::Settings& settings) { return !settings.text("implementation").empty(); }

std::filesystem::path data_folder() {
  harness::Program self;
  self.name = kProgramName;
  self.source_dir = build_info::kSourceDir;
  return harness::data_folder(self);
}

std::filesystem::path model_file(const harness::Settings& settings) {
  std::string name = settings.text("model");
  if (name == "auto") name = settings.text("run.device") == "cuda" ? "m7c_125m" : "tiny";
  std::error_code error;  // what cannot be looked at is no file
  if (std::filesystem::is_regular_file(name, error)) return name;
  const std::filesystem::path folder = data_folder() / "configs" / "models";
  if (std::filesystem::is_regular_file(folder / (name + ".yaml"), error)) return folder / (name + ".yaml");

  std::vector<std::string> known = {"auto"};
  for (const auto& entry : std::filesystem::directory_iterator(folder)) known.push_back(entry.path().stem().string());
  const std::string near = base::nearest(name, known);
  throw harness::UsageError(fmt::format("model: '{}' is neither a file nor a model in {} (known: {}){}", name,
                                        folder.string(), fmt::join(known, ", "),
                                        near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
}

std::vector<nsa::Override> model_overrides(const harness::Settings& settings) {
  std::vector<nsa::Override> overrides;
  for (const auto& [key, value] : nsa::flatten(nsa::Config{}))
    if (const std::string text = settings.text(key); !text.empty())
      overrides.push_back({key, text, settings.values().at(key).origin});
  return overrides;
}

nsa::Config model_config(const harness::Settings& settings) {
  return nsa::load_config(model_file(settings), model_overrides(settings));
}

std::filesystem::path text_file(const harness::Settings& settings, const nsa::Config& config) {
  const std::string chosen = settings.text("data");
  const std::filesystem::path path = chosen.empty() ? config.train.data : chosen;
  std::error_code error;  // what cannot be looked at is refused by whoever reads it
  return path.is_absolute() || std::filesystem::exists(path, error) ? path : data_folder() / path;
}

}  // namespace suites
