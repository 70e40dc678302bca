#include "harness/publish.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "harness/progress.hpp"
#include "harness/settings.hpp"
#include "reports/journal.hpp"
#include "reports/writers.hpp"

namespace harness {

namespace {

std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return text;
  const std::size_t before = text.find_last_of('\n', end);
  return text.substr(before == std::string::npos ? 0 : before + 1);
}

void append_to(const std::filesystem::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::app);
  stream << text << std::flush;
  if (!stream) throw std::runtime_error(fmt::format("--summary-file: {} cannot be written", file.string()));
}

}  // namespace

reports::ExitCode publish(const std::filesystem::path& folder, const PublishOptions& options) {
  const reports::Run run = reports::read_journal(folder / reports::kJournalFile);
  reports::ExitCode code = reports::assess(run).exit_code;
  const auto attempt = [&code](const auto& write) {
    try {
      write();
    } catch (const std::exception& error) {
      fmt::print(stderr, "error: {}\n", error.what());
      code = reports::worse(code, reports::ExitCode::infrastructure);
    }
  };
  attempt([&] { reports::write_all(run, folder); });
  if (options.summary_file) attempt([&] { append_to(*options.summary_file, reports::to_markdown(run)); });

  const std::string text = reports::to_console(run, want_color(options.color, STDOUT_FILENO));
  if (!options.quiet) fmt::print("report: {}\n", (folder / "report.md").string());
  fmt::print("{}", options.quiet ? last_line(text) : text);
  std::fflush(stdout);
  return code;
}

}  // namespace harness
