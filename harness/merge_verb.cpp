// `merge DIR ...`: one report of many hosts.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <stdexcept>

#include "base/streams.hpp"
#include "harness/fleet_folders.hpp"
#include "harness/verbs.hpp"
#include "reports/fleet.hpp"
#include "reports/read_run.hpp"

namespace harness {

namespace {

namespace fs = std::filesystem;
using reports::FleetTrouble;

std::string_view code_of(FleetTrouble trouble) {
  switch (trouble) {
    case FleetTrouble::missing:
      return codes::kHostMissing;
    case FleetTrouble::unexpected:
      return codes::kHostUnexpected;
    case FleetTrouble::unreadable:
      return codes::kHostUnreadable;
    case FleetTrouble::twice:
      return codes::kHostTwice;
    case FleetTrouble::other_validation:
      return codes::kHostsOtherValidation;
    case FleetTrouble::other_machine:
      return codes::kHostsOtherMachine;
    case FleetTrouble::slow:
      return codes::kHostSlow;
    case FleetTrouble::other_bits:
      return codes::kHostOtherBits;
    case FleetTrouble::no_number:
      return codes::kHostNoNumber;
  }
  throw std::logic_error("FleetTrouble outside its enumeration");
}

reports::Finding finding_of(FleetTrouble trouble) {
  const auto all = own_codes();
  const auto code = std::find_if(all.begin(), all.end(), [&](const Code& c) { return c.id == code_of(trouble); });
  reports::Finding finding;
  finding.code = code->id;
  finding.severity = code->severity;
  finding.category = code->category;
  finding.title = code->title;
  finding.cause = code->cause;
  finding.next = code->next;
  return finding;
}

// A number, or names with commas between.
void read_expected(const std::string& text, reports::FleetOptions& to) {
  constexpr std::size_t kMost = 100'000;  // as many as are read of a folder; each that is missing has its line
  constexpr const char* kAllowed = "the number of hosts, or their names with commas between";
  const auto refuse = [&](const std::string& why) {
    return UsageError(fmt::format("--expect: '{}'{}; allowed is {}", text, why, kAllowed));
  };
  if (text.find_first_not_of("0123456789") == std::string::npos) {
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || number == 0 || number > kMost)
      throw refuse(fmt::format(" is no number from 1 to {}", kMost));
    to.expected_number = number;
    return;
  }
  std::set<std::string> seen;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    std::string name = text.substr(at, end - at);
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    if (name.empty()) throw refuse(" has an empty name");
    if (name.front() == '-') throw refuse(fmt::format(": '{}' is no name of a host", name));
    if (!seen.insert(name).second) throw refuse(fmt::format(" has '{}' twice", name));
    to.expected_names.push_back(name);
    at = end + 1;
  }
}

// A run's folder keeps to its run, and what is no folder cannot take the report.
void refuse_unusable(const fs::path& out) {
  std::error_code error;
  if (fs::exists(out, error) && !fs::is_directory(out, error))
    throw UsageError(fmt::format("--out: {} is not a folder", out.string()));
  for (const char* name : {reports::kJournalFile, reports::kReportFile})
    if (fs::exists(fs::symlink_status(out / name, error)))
      throw UsageError(fmt::format("--out: {} is the folder of a run ({}); give another one", out.string(), name));
}

// With all that is in it.
void refuse_inside(const fs::path& out, const std::vector<HostFolder>& folders) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(out, error);
  for (const HostFolder& folder : folders)
    if (const fs::path& run = folder.path;
        folder.trouble.empty() && std::mismatch(run.begin(), run.end(), whole.begin(), whole.end()).first == run.end())
      throw UsageError(
          fmt::format("--out: {} is in {}, the folder of a run; give another one", out.string(), run.string()));
}

}  // namespace

reports::ExitCode merge(const Program& program, const CommandLine& line) {
  if (line.summary_file) throw UsageError("option '--summary-file' has no meaning for the verb 'merge'");
  reports::FleetOptions options;
  options.code = finding_of;
  if (line.expect) read_expected(*line.expect, options);
  if (line.out) refuse_unusable(*line.out);
  const std::vector<HostFolder> folders = host_folders(line.operands);
  if (line.out) refuse_inside(*line.out, folders);
  const reports::Fleet fleet = reports::merge(read_hosts(program, folders), options);
  const std::vector<std::string> lost = line.out ? reports::write_fleet(fleet, *line.out) : std::vector<std::string>();
  for (const std::string& file : lost) base::complain(fmt::format("--out: {}", file));
  const std::string text = line.json ? reports::dump(reports::to_json(fleet), 2) + "\n" : reports::to_text(fleet);
  base::out("{}", line.quiet && !line.json ? base::last_line(text) : text);
  if (lost.empty()) return fleet.exit_code;
  const reports::ExitCode code = reports::worse(fleet.exit_code, reports::ExitCode::infrastructure);
  if (!line.json)  // the verdict is not the last word where nobody will find it again
    base::out("--out {}: not all of the report could be written; exit code {}\n", line.out->string(),
              static_cast<int>(code));
  return code;
}

}  // namespace harness
