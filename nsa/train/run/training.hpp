// From the command line and a configuration to something that trains.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "nsa/config.hpp"
#include "nsa/dispatch.hpp"
#include "nsa/train/run/options.hpp"
#include "nsa/train/run/ranks.hpp"
#include "nsa/train/stream.hpp"
#include "nsa/train/trainer.hpp"

namespace nsa::train {

// Where a test of the program may change what it makes, or look on. Empty in nsa-train.
struct Seams {
  std::function<void(LanguageModel&)> model = {};
  OpsChange ops = {};
  // The stream of a split in place of the one given, which is not null: behind what is read ahead, so that next() is
  // called by who trains or evaluates, and gives what they get.
  std::function<std::shared_ptr<BatchStream>(std::shared_ptr<BatchStream>, Split)> data = {};
  parallel::GroupSeams group = {};
  // After every step that was made, before a word of it is written down.
  std::function<void(const Trainer&)> after_step = {};
  // Why the program ends with an error, as standard error is told.
  std::function<void(const std::string&)> failed = {};
};

// The configuration with the overrides of the command line. The schedule has train.steps steps, or --steps when that is
// more, and is checked with that length.
// Throws ConfigInvalid.
[[nodiscard]] Config configuration(const Options& options);

struct Training {
  Config config;
  at::Device device = at::kCPU;
  EffectiveFlags flags;
  Environment environment;
  std::shared_ptr<Dispatcher> dispatcher;
  LanguageModel model{nullptr};
  std::unique_ptr<Trainer> trainer;
  std::shared_ptr<BatchStream> validation;         // with train.eval_every > 0
  std::function<void(const Trainer&)> after_step;  // of the seams; may be empty
};
// Opens the data and makes model and trainer; touches no file. With a group all ranks do so at
// the same time. Throws UsageError, FlagInvalid, DataError, DeviceError, parallel::Error.
[[nodiscard]] Training make_training(const Config& config, const Options& options, const Rank& rank,
                                     const Seams& seams);

// `name` where it is, else below the folder of the sources, else below the installed data; `name` itself when nowhere.
[[nodiscard]] std::filesystem::path find_file(const std::filesystem::path& name);

}  // namespace nsa::train
