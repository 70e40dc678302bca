// The folders that are written to: control files of earlier runs, and room.
#include <fmt/format.h>

#include <stdexcept>

#include "suites/machine/control_files.hpp"
#include "suites/machine/folder.hpp"
#include "suites/preflight/checks.hpp"

namespace suites::preflight_checks {

namespace {

constexpr std::uintmax_t kReportBytes = std::uintmax_t{100} << 20;  // journal, report files, logs of the workers

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
}

}  // namespace suites::preflight_checks
