#include "harness/publish.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/streams.hpp"
#include "harness/journal_writer.hpp"
#include "harness/process.hpp"
#include "harness/progress.hpp"
#include "harness/settings.hpp"
#include "reports/writers.hpp"

namespace harness {

namespace {

std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return text;
  const std::size_t before = text.find_last_of('\n', end);
  return text.substr(before == std::string::npos ? 0 : before + 1);
}

// In one write, so that several runs can append to one file.
void append_to(const std::filesystem::path& file, const std::string& text) {
  const Fd fd(open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  const ssize_t written = fd.get() < 0 ? -1 : write(fd.get(), text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size())) return;
  throw std::runtime_error(fmt::format("--summary-file: {} cannot be written: {}", file.string(),
                                       std::strerror(written < 0 ? errno : ENOSPC)));
}

}  // namespace

void check_summary_file(const std::filesystem::path& file) {
  Fd fd(open(file.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC));
  const int error = errno;
  if (fd.get() >= 0) {
    if (const auto why = base::unwritable(fd.get()))
      throw InfrastructureError(fmt::format("--summary-file: {} cannot be written: {}", file.string(), *why));
  } else if (error == ENOENT) {  // would it be made? a link that leads nowhere is followed there
    const std::filesystem::path folder = std::filesystem::weakly_canonical(file).parent_path();
    if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0)
      throw UsageError(fmt::format("--summary-file: {} cannot be written: {}", file.string(), std::strerror(errno)));
  } else if (error != ENXIO) {  // ENXIO: a named pipe that nobody reads yet
    throw UsageError(fmt::format("--summary-file: {} cannot be written: {}", file.string(), std::strerror(error)));
  }
}

reports::ExitCode publish(const reports::Run& run, const PublishOptions& options) {
  reports::ExitCode code = reports::assess(run).exit_code;
  const auto attempt = [&code](const auto& write) {
    try {
      write();
      return true;
    } catch (const std::exception& error) {
      base::complain(error.what());
      code = reports::worse(code, reports::ExitCode::infrastructure);
      return false;
    }
  };
  const bool filed = options.folder && attempt([&] { reports::write_all(run, *options.folder); });
  if (options.summary_file) attempt([&] { append_to(*options.summary_file, reports::to_markdown(run)); });

  if (const auto why = base::lost(stderr))
    base::out("error: standard error cannot be written: {}; what it should have shown is lost\n", *why);
  const std::string text = reports::to_console(run, want_color(options.color, STDOUT_FILENO));
  if (filed && !options.quiet) base::out("report: {}\n", (*options.folder / "report.md").string());
  base::out("{}", options.quiet ? last_line(text) : text);
  return code;
}

}  // namespace harness
