#include "harness/publish.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "base/atomic_file.hpp"
#include "base/streams.hpp"
#include "harness/bundles.hpp"
#include "harness/codes.hpp"
#include "harness/journal_writer.hpp"
#include "harness/process.hpp"
#include "harness/progress.hpp"
#include "harness/run_folder.hpp"
#include "harness/settings.hpp"
#include "reports/writers.hpp"

namespace harness {

namespace {

constexpr const char* kNoReader = "it is a pipe that nobody reads";

// In one write, so that several runs can append to one file. A pipe that nobody reads any more is an error and no wait.
void append_to(const std::filesystem::path& file, const std::string& text) {
  const Fd fd(open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0644));
  if (fd.get() >= 0) fcntl(fd.get(), F_SETFL, O_APPEND);  // one that is read takes all of it
  const ssize_t written = fd.get() < 0 ? -1 : write(fd.get(), text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size())) return;
  throw std::runtime_error(fmt::format("--summary-file: {} cannot be written: {}", file.string(),
                                       written >= 0     ? std::strerror(ENOSPC)
                                       : errno == ENXIO ? kNoReader
                                                        : std::strerror(errno)));
}

reports::Finding lost_output(const std::string& what) {
  const auto own = own_codes();
  const auto code = std::find_if(own.begin(), own.end(), [](const Code& c) { return c.id == codes::kLostOutput; });
  reports::Finding finding;
  finding.code = code->id;
  finding.severity = code->severity;
  finding.category = code->category;
  finding.title = code->title;
  finding.message = what;
  finding.cause = code->cause;
  finding.next = code->next;
  finding.evidence = reports::Json::object();
  return finding;
}

bool tells_loss(const reports::Run& run, std::string_view stream) {
  return std::any_of(run.findings.begin(), run.findings.end(), [&](const reports::Finding& f) {
    return f.code == codes::kLostOutput && f.message.starts_with(stream);
  });
}

namespace fs = std::filesystem;

// The report that a person opens first, of those that were written.
std::optional<fs::path> report_of(const std::set<fs::path>& written, const PublishOptions& options) {
  if (!options.folder) return std::nullopt;
  for (const char* name : {"report.md", "report.html", "report.json"})
    if (const fs::path file = *options.folder / name; written.contains(file)) return file;
  return std::nullopt;
}

// Where a file of this name is, or would be made: links are followed, also one that leads nowhere yet. Throws
// UsageError when there is no folder for it.
fs::path place_of(const fs::path& file) {
  constexpr int kMostLinks = 40;
  fs::path place = file;
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(fs::symlink_status(place, error)); ++i)
    place = place.parent_path() / fs::read_symlink(place, error);  // an absolute one replaces the folder
  const fs::path parent = fs::canonical(place.has_parent_path() ? place.parent_path() : fs::path("."), error);
  if (error || !place.has_filename())
    throw UsageError(fmt::format("--summary-file: {} cannot be written: {}", file.string(),
                                 error ? error.message() : std::strerror(EISDIR)));
  return parent / place.filename();
}

// Of the files of a run's folder, as RunFolder and the writers of reports name them.
bool is_of_run(const fs::path& place, const fs::path& folder) {
  const fs::path inside = place.lexically_relative(folder);
  if (inside.empty() || *inside.begin() == "..") return false;
  const std::string first = *inside.begin();
  for (const char* name : {"events.jsonl", "report.json", "report.md", "report.html", "junit.xml", ".reserve",
                           RunFolder::kLock, "suites", "logs", reports::kBundleFolder})
    if (first == name || first == std::string(name).append(base::AtomicFile::kTemporary)) return true;
  return false;
}

// The same file under another name: a hard link.
bool is_same_as_of_run(const fs::path& place, const fs::path& folder) {
  std::error_code error;
  for (const char* name : {"events.jsonl", "report.json", "report.md", "report.html", "junit.xml", RunFolder::kLock})
    if (fs::equivalent(place, folder / name, error)) return true;
  return false;
}

}  // namespace

Fd check_summary_file(const fs::path& file, const fs::path& folder) {
  if (file.empty()) throw UsageError("--summary-file: '' names no file; give the file that report.md is appended to");
  Fd fd(open(file.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC));
  const int error = errno;
  if (fd.get() < 0 && error != ENOENT)
    throw UsageError(fmt::format("--summary-file: {} cannot be written: {}", file.string(),
                                 error == ENXIO ? kNoReader : std::strerror(error)));
  const fs::path place = place_of(file);
  if (is_of_run(place, fs::weakly_canonical(folder)) || is_same_as_of_run(place, folder))
    throw UsageError(fmt::format("--summary-file: {} is a file of the run itself, in {}; give another file",
                                 file.string(), folder.string()));
  if (fd.get() >= 0) {
    if (const auto why = base::unwritable(fd.get()))
      throw InfrastructureError(fmt::format("--summary-file: {} cannot be written: {}", file.string(), *why));
  } else if (access(place.parent_path().c_str(), W_OK | X_OK) != 0) {  // would it be made?
    throw UsageError(fmt::format("--summary-file: {} cannot be written: {}", file.string(), std::strerror(errno)));
  }
  return fd;
}

reports::ExitCode publish(reports::Run run, std::span<const reports::CauseRule> causes, const PublishOptions& options) {
  std::vector<std::string> lost;
  std::set<fs::path> own;  // files of this call
  const auto add_loss = [&](const std::string& what) {
    run.findings.push_back(lost_output(what));
    reports::find_causes(run, causes);
  };
  const auto lose = [&](const std::string& what) {
    base::complain(what);
    lost.push_back(what);
    add_loss(what);
  };
  // What can be written tells of what cannot: again, until nothing new is lost.
  const auto write_files = [&] {
    for (bool again = options.folder.has_value(); again;) {
      again = false;
      for (const std::string& what : reports::write_all(run, *options.folder, own)) {
        if (std::find(lost.begin(), lost.end(), what) != lost.end()) continue;
        lose(what);
        again = true;
      }
    }
  };

  reports::find_causes(run, causes);
  if (options.folder) write_bundles(run, *options.folder, own, lose);
  write_files();
  if (options.summary_file) {
    try {
      append_to(*options.summary_file, reports::to_markdown(run));
    } catch (const std::exception& error) {
      lose(error.what());
      write_files();
    }
  }

  if (const auto why = base::lost(stderr)) {
    base::out("error: standard error cannot be written: {}; what it should have shown is lost\n", *why);
  } else if (options.quiet) {  // the text tells it otherwise
    for (const std::string& what : lost) base::out("error: {}\n", what);
  }
  const std::string text = reports::to_console(run, want_color(options.color, STDOUT_FILENO));
  if (const auto report = report_of(own, options); report && !options.quiet)
    base::out("report: {}\n", report->string());
  base::out("{}", options.quiet ? base::last_line(text) : text);

  // What is lost now, with the files already there, is told by them all the same.
  bool told_all = true;
  for (const auto& [stream, name] : {std::pair(stdout, "standard output"), std::pair(stderr, "standard error")}) {
    const auto why = base::lost(stream);
    if (!options.streams || !why || tells_loss(run, name)) continue;
    add_loss(fmt::format("{} cannot be written: {}", name, *why));
    told_all = false;
  }
  if (!told_all) write_files();
  return reports::assess(run).exit_code;
}

}  // namespace harness
