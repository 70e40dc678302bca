// Which files a run uses: the model's configuration, the text that training reads, where both lie. No torch call: the
// supervisor plans with it, and `nsa-doctor` is made without LibTorch.
#pragma once

#include <filesystem>
#include <vector>

#include "harness/program.hpp"
#include "harness/settings.hpp"
#include "nsa/config.hpp"

namespace suites {

// Keys that every suite may read: `model` (path, name in configs/models, or auto), `data` (text file; default: that of
// the model's configuration), `implementation` (adapter of what is judged instead of our own functions), `python`; and
// every key of a model's configuration ("nsa.w"), which stands above the file.
[[nodiscard]] std::vector<harness::SettingSpec> common_settings();

// The file that the setting `model` names (a path, a name in configs/models, or "auto": tiny when `run.device` is cpu,
// m7c_125m when it is cuda). Throws harness::UsageError naming the nearest known model. No torch call.
[[nodiscard]] std::filesystem::path model_file(const harness::Settings& settings);
// The keys of it that settings replace.
[[nodiscard]] std::vector<nsa::Override> model_overrides(const harness::Settings& settings);
// What they say together. Throws harness::UsageError, nsa::ConfigInvalid. No torch call.
[[nodiscard]] nsa::Config model_config(const harness::Settings& settings);
// The settings among them that `replay --minimize` may make smaller.
[[nodiscard]] std::vector<harness::SizeSetting> common_sizes();
// The text that training reads: the setting `data`, else train.data of `config`, relative to the data folder.
[[nodiscard]] std::filesystem::path text_file(const harness::Settings& settings, const nsa::Config& config);
// Whether the setting `implementation` names an adapter.
[[nodiscard]] bool judges_implementation(const harness::Settings& settings);
// Where configs/ and fixtures/ lie (harness::data_folder of this program). No torch call.
[[nodiscard]] std::filesystem::path data_folder();

}  // namespace suites
