#include "harness/bundles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <system_error>

#include "base/files.hpp"
#include "base/fnv1a.hpp"
#include "base/nearest.hpp"
#include "base/streams.hpp"
#include "harness/plan.hpp"
#include "harness/protocol.hpp"
#include "harness/provenance.hpp"
#include "harness/repro.hpp"
#include "reports/journal.hpp"
#include "reports/writers.hpp"

namespace harness {

namespace fs = std::filesystem;
using reports::Bundle;
using reports::JournalError;

namespace {

constexpr std::size_t kMostEvents = 200;                              // of a case; half of them from its end
constexpr std::size_t kMostEventBytes = std::size_t{8} << 10;         // of one event
constexpr std::uintmax_t kMostHashedBytes = std::uintmax_t{1} << 30;  // of a file that is hashed

// The events of some cases, in one pass over the journal.
class Slices {
 public:
  explicit Slices(const std::vector<const reports::Case*>& cases) {
    for (const reports::Case* c : cases) slices_[c->id];
  }
  void read(const fs::path& journal) {
    std::ifstream lines(journal, std::ios::binary);
    if (!lines) throw std::runtime_error(fmt::format("{}: cannot be read for the bundles", journal.string()));
    for (std::string line; std::getline(lines, line);) {
      if (line.find("\"case\":\"") == std::string::npos) continue;
      Json event = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!event.is_object() || !event.contains("case") || !event["case"].is_string()) continue;
      const auto slice = slices_.find(event["case"].get<std::string>());
      if (slice != slices_.end()) add(slice->second, std::move(event), line.size());
    }
  }
  [[nodiscard]] const reports::Slice& of(const std::string& id) const { return slices_.at(id); }

 private:
  static void add(reports::Slice& slice, Json event, std::size_t bytes) {
    if (bytes > kMostEventBytes) {
      Json cut = Json::object();
      for (const char* key : {"event", "t", "seq", "case", "code", "name", "key"})
        if (event.contains(key)) cut[key] = event[key];
      cut["left_out"] = fmt::format("{} bytes, in the run's journal", bytes);
      event = std::move(cut);
    }
    if (slice.events.size() == kMostEvents) {  // the middle goes
      slice.events.erase(kMostEvents / 2);
      ++slice.left_out;
    }
    slice.events.push_back(std::move(event));
  }
  std::map<std::string, reports::Slice> slices_;
};

Json inputs_of(const reports::Case& c, const fs::path& folder) {
  Json inputs = Json::array();
  for (const std::string& path : c.artifacts) {
    std::error_code error;
    const fs::path file = folder / path;
    const std::uintmax_t bytes = fs::file_size(file, error);
    if (!reports::stays_below(path) || error || !fs::is_regular_file(fs::symlink_status(file, error))) continue;
    inputs.push_back({{"path", path}, {"hash", bytes > kMostHashedBytes ? "" : file_hash(file)}, {"bytes", bytes}});
  }
  return inputs;
}

std::vector<const reports::Case*> failed_cases(const reports::Run& run) {
  std::vector<const reports::Case*> failed;
  for (const reports::Suite& suite : run.suites)
    for (const reports::Case& c : suite.cases)
      if (reports::tally(reports::outcome(c)) == reports::Tally::failed) failed.push_back(&c);
  return failed;
}

// As the run was called: launcher or binary.
std::string program_of(const reports::Run& run) {
  if (run.argv.is_array() && !run.argv.empty() && run.argv.front().is_string()) return run.argv.front();
  return run.provenance.value(Json::json_pointer("/program/name"), "nsa-validate");
}

}  // namespace

std::string seal_of(const Json& bundle) {
  Json rest = bundle;
  rest.erase("seal");
  return fmt::format("{:016x}", base::fnv1a(base::kFnvOffset, reports::dump(rest)));
}

std::string sealed(Json bundle) {
  bundle = Json::parse(reports::dump(bundle));  // as it will be read
  bundle["seal"] = seal_of(bundle);
  return reports::dump(bundle, 1) + "\n";
}

void write_bundles(reports::Run& run, const fs::path& folder, std::set<fs::path>& own,
                   const std::function<void(const std::string&)>& lose) {
  std::vector<const reports::Case*> failed = failed_cases(run);
  if (failed.empty()) return;
  if (failed.size() > reports::kMostBundles) {
    base::err("note: {} cases failed; the first {} have a bundle in {}\n", failed.size(), reports::kMostBundles,
              (folder / reports::kBundleFolder).string());
    failed.resize(reports::kMostBundles);
  }
  Slices slices(failed);
  try {
    slices.read(folder / reports::kJournalFile);
  } catch (const std::exception& error) {
    lose(error.what());
  }
  for (const reports::Case* c : failed) {
    const std::string name = case_slug(c->id);
    const std::string path = fmt::format("{}/{}", reports::kBundleFolder, name);
    try {
      const std::string text = sealed(reports::bundle_of(run, *c, slices.of(c->id), inputs_of(*c, folder)));
      if (text.size() > reports::kMostBundleBytes)
        throw std::runtime_error(fmt::format("{}: the bundle of {} would have {} bytes, which no reader takes",
                                             (folder / path).string(), c->id, text.size()));
      reports::write_bundle(folder, name, text, own);
      run.bundles[c->id] = {path,
                            fmt::format("{} replay {}", shell_quote(program_of(run)), shell_quote(folder / path))};
    } catch (const std::exception& error) {
      lose(error.what());
    }
  }
}

bool may_be_set(const Program& program, const std::string& variable) {
  const bool plain = !variable.empty() && std::all_of(variable.begin(), variable.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
  const auto recorded = recorded_variables();
  return plain && (std::find(recorded.begin(), recorded.end(), variable) != recorded.end() ||
                   std::any_of(program.variables.begin(), program.variables.end(),
                               [&](const std::string& pattern) { return matches(pattern, variable); }));
}

namespace {

std::string text_of(const fs::path& file) {
  const auto damaged = [&](const std::string& why) {
    return JournalError(fmt::format("{}: {}", file.string(), why), false);
  };
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(file, error))) throw damaged("is a link, which is not followed");
  try {
    return base::read_head(file, reports::kMostBundleBytes + 1);
  } catch (const std::system_error& unreadable) {
    throw damaged(unreadable.code() == std::errc::not_supported
                      ? "is no regular file, and no bundle"
                      : fmt::format("cannot be read: {}", unreadable.code().message()));
  }
}

// A name that this program does not know: `what` is "setting", "fault", ...
[[noreturn]] void unknown(const fs::path& file, const std::string& place, const std::string& name,
                          const std::vector<std::string>& known) {
  const std::string near = base::nearest(name, known);
  throw JournalError(fmt::format("{}: {}: this program knows no '{}'{}", file.string(), place, name.substr(0, 100),
                                 near.empty() ? "" : fmt::format("; did you mean '{}'?", near)),
                     false);
}

void check_names(const Bundle& bundle, const fs::path& file, const Program& program) {
  std::vector<std::string> keys, faults, suites;
  for (const SettingSpec& spec : all_setting_specs(program)) keys.push_back(spec.key);
  for (const Fault& fault : program.faults) faults.push_back(fault.name);
  for (const Suite& suite : program.suites) suites.push_back(suite.name);
  const auto check = [&](const std::string& place, const std::string& name, const std::vector<std::string>& known) {
    if (std::find(known.begin(), known.end(), name) == known.end()) unknown(file, place, name, known);
  };
  check("case.suite", bundle.suite, suites);
  if (!bundle.case_id.starts_with(bundle.suite + "/"))
    throw JournalError(fmt::format("{}: case.id: '{}' is none of the suite {}", file.string(),
                                   bundle.case_id.substr(0, 100), bundle.suite),
                       false);
  for (const auto& setting : bundle.settings) check("settings", setting.key, keys);
  for (const auto& [key, value] : bundle.resolved) check("resolved.values", key, keys);
  for (const std::string& fault : bundle.faults) check("faults", fault, faults);
  for (const auto& [name, value] : bundle.environment)
    if (!may_be_set(program, name))
      throw JournalError(
          fmt::format("{}: environment: '{}' is no variable that a bundle may set", file.string(), name.substr(0, 100)),
          false);
}

}  // namespace

Bundle read_bundle(const fs::path& file, const Program& program) {
  Bundle bundle = reports::parse_bundle(text_of(file), file.string());
  const Json& seal = bundle.json.value("seal", Json());
  if (const std::string own = seal_of(bundle.json); seal != own)
    throw JournalError(fmt::format("{}: seal is {}, and that of what stands there is {}: it was damaged or edited",
                                   file.string(), reports::dump(seal).substr(0, 60), own),
                       false);
  if (bundle.program != program.name)
    throw JournalError(
        fmt::format("{}: is a bundle of {}, not of {}", file.string(), bundle.program.substr(0, 60), program.name),
        false);
  check_names(bundle, file, program);
  return bundle;
}

}  // namespace harness
