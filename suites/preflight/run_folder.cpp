// The folders that are written to: control files of earlier runs, and room.
#include <fmt/format.h>

#include <stdexcept>

#include "nsa/train/run/exit_code.hpp"
#include "nsa/train/run/training_folder.hpp"
#include "suites/codes.hpp"
#include "suites/machine/control_files.hpp"
#include "suites/machine/folder.hpp"
#include "suites/preflight/checks.hpp"

namespace suites::preflight_checks {

namespace {

constexpr std::uintmax_t kReportBytes = std::uintmax_t{100} << 20;  // journal, report files, logs of the workers

// What nsa-train itself would refuse, and the run that lies there already.
void judge_run_in(const std::filesystem::path& folder, Context& context) {
  std::string refused;
  try {
    const auto record = nsa::train::record_in(folder);
    if (record) context.fact("train_folder.holds_run", record->at("run_id").get<std::string>());
  } catch (const nsa::train::UsageError& error) {
    refused = error.what();
  }
  context.expect("train_folder.usable", refused.empty(), "nsa-train would refuse this folder: " + refused,
                 codes::kRunFolder, {{"path", folder.string()}});
}

}  // namespace

void halt_files(Context& context) {
  if (!std::filesystem::is_directory(context.run_folder()))
    throw std::runtime_error("the run's folder does not exist: " + context.run_folder().string());
  machine::tell(context, machine::judge_control_files(context.run_folder(), "run_folder", context.run_id()));
}

void run_folder_space(Context& context) {
  machine::tell(context, machine::judge_folder(machine::look_at_folder(context.run_folder()),
                                               {"run_folder", kReportBytes, "the journal and the report"}));
}

void train_folder(const Subject& subject, Context& context) {
  const std::filesystem::path folder = context.settings().text("preflight.train_folder");
  const nsa::Config config = subject.config(context);
  machine::tell(context, machine::judge_control_files(folder, "train_folder", /*run_id=*/""));
  machine::tell(context, machine::judge_folder(machine::look_at_folder(folder),
                                               {"train_folder", machine::checkpoint_bytes(config),
                                                fmt::format("{} checkpoint(s) and the one that is being written",
                                                            config.train.keep_checkpoints)}));
  if (std::filesystem::is_directory(folder)) judge_run_in(folder, context);
}

}  // namespace suites::preflight_checks
