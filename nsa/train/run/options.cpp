#include "nsa/train/run/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <sstream>

#include "base/streams.hpp"
#include "build_info.hpp"
#include "nsa/train/run/exit_code.hpp"

namespace nsa::train {

namespace {

constexpr const char* kFooter = R"(
Without --resume a folder that holds a run is refused. With it the run goes on from its newest sound checkpoint, starts
anew when there is none, and repeats its last line when it is finished. The last line on stdout is

  final: step=N loss=X weights=HASH        (stopped: ... reason=WHY when it did not get there)

Exit codes: 0 finished, 1 not finite or diverged (.HALT says what), 2 usage or configuration, 3 end of the data, 4 disk,
data or device, 5 stopped by a .HALT file, 6 hung, 10 internal error, 12 finished but with values of the reference for
what was not finite (NSA_STRICT_ASSERTS), 13 a rank failed or was lost, 130 and 143 interrupted and terminated after a checkpoint.)";

Override setting_of(const std::string& text) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw UsageError(fmt::format("--set {}: must be KEY=VALUE, as in train.lr=3e-4", text));
  return {text.substr(0, equals), text.substr(equals + 1), "--set"};
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  std::vector<std::string> settings;
  CLI::App app("Trains the model of a configuration, guarded, in a folder of its own.", "nsa-train");
  app.footer(kFooter);
  app.set_version_flag("--version", fmt::format("nsa-train {} (build {})", build_info::kVersion, build_info::kBuildId));
  app.add_option("--config", options.config, "model and training, see configs/train")->required();
  app.add_option("--out", options.out, "folder of the run")->required();
  app.add_option("--steps", options.steps,
                 "how far to go: optimizer steps in all; without it train.steps, the length of the schedule, which a "
                 "larger number here makes longer")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}));
  app.add_option_function<std::string>(
      "--save-every",
      [&](const std::string& value) {
        options.overrides.push_back({"train.save_every", value, "--save-every"});
      },
      "steps between checkpoints (train.save_every); 0: only at the end");
  app.add_option_function<std::string>(
      "--data",
      [&](const std::string& value) {
        options.overrides.push_back({"train.data", value, "--data"});
      },
      "a text, a .jsonl file or 'synthetic' (train.data)");
  app.add_option("--set", settings, "KEY=VALUE, any key of the configuration; repeatable");
  app.add_flag("--resume", options.resume, "go on with the run in the folder");
  app.add_flag("--force", options.force, "remove the run in the folder and start anew")->excludes("--resume");
  const std::map<std::string, DeviceChoice> devices = {
      {"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}};
  app.add_option("--device", options.device, "auto (a GPU if there is one), cpu or cuda")
      ->transform(CLI::CheckedTransformer(devices));
  app.add_option("--nproc", options.nproc,
                 "train with N processes on this machine, each with its share of every batch; under torchrun or srun "
                 "leave it out")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1024}));
  app.add_flag("--quiet", options.quiet, "no progress on stderr");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream text;
    (void)app.exit(asked, text, text);
    base::out("{}", text.str());
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw UsageError(fmt::format("{} (nsa-train --help)", error.what()));
  }
  for (const auto& text : settings) options.overrides.push_back(setting_of(text));
  return options;
}

}  // namespace nsa::train
