#include "harness/run_folder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <string_view>
#include <vector>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "base/streams.hpp"
#include "harness/journal_writer.hpp"
#include "harness/settings.hpp"
#include "harness/suite.hpp"
#include "reports/bundle.hpp"
#include "reports/journal.hpp"

namespace harness {

namespace fs = std::filesystem;
using reports::Json;

namespace {

// All that a run ever puts at the top of its folder, but for suites/, logs/, artifacts/, bundles/ and its lock, which
// is never removed.
constexpr std::array kOwnFiles{"events.jsonl", "report.json", "report.md", "report.html", "junit.xml", ".reserve"};
constexpr std::array kOwnFolders{"suites", "logs"};
// With a folder for each case that has some, and the files in there.
struct OfCases {
  const char* folder;
  std::array<const char*, 2> files;
};
constexpr std::array kOfCases{OfCases{"artifacts", {"repro.py", "inputs.pt"}},
                              OfCases{reports::kBundleFolder, {reports::kBundleFile, reports::kMinimisedFile}}};
constexpr std::size_t kFirstLineBytes = std::size_t{64} << 20;  // the plan of a run is in it

bool is_link(const fs::path& file) { return fs::is_symlink(fs::symlink_status(file)); }
bool is_file(const fs::path& file) { return fs::is_regular_file(fs::symlink_status(file)); }
bool is_folder(const fs::path& file) { return fs::is_directory(fs::symlink_status(file)); }
bool is_there(const fs::path& file) { return fs::exists(fs::symlink_status(file)); }

// What the beginning of a folder's journal proves.
struct Proof {
  bool run = false;   // its first line is a run_begin of this program's
  bool torn = false;  // no journal, an empty one, or one that was cut inside its first line: the run had hardly begun
  std::string why_not;
  std::set<std::string> suites;  // of the run's plan: the names of its files in suites/
  std::set<std::string> slugs;   // of its cases: the names of its folders in artifacts/ and bundles/
};

Proof proof_of(const fs::path& folder) {
  constexpr std::string_view kBegin = R"({"event":"run_begin")";
  const fs::path journal = folder / reports::kJournalFile;
  Proof proof;
  if (!is_there(journal)) {
    proof.torn = true;
    proof.why_not = fmt::format("it has no {}", reports::kJournalFile);
    return proof;
  }
  proof.why_not = fmt::format("its {} does not begin as that of a run", reports::kJournalFile);
  if (!is_file(journal)) return proof;
  const std::string head = base::read_head(journal, kFirstLineBytes);
  const std::size_t end = head.find('\n');
  proof.torn =
      end == std::string::npos && std::string_view(head).substr(0, kBegin.size()) == kBegin.substr(0, head.size());
  const Json first = Json::parse(head.substr(0, end), nullptr, /*allow_exceptions=*/false);
  // Of any version: the names of the files have been the same in all of them.
  if (end == std::string::npos || !first.is_object() || first.value("event", Json()) != "run_begin" ||
      first.value("schema", Json()) != reports::kEventSchema)
    return proof;
  proof.run = true;
  if (const Json suites = first.value(Json::json_pointer("/plan/suites"), Json()); suites.is_array())
    for (const Json& suite : suites) {
      if (!suite.is_object()) continue;
      if (suite.contains("name") && suite["name"].is_string()) proof.suites.insert(suite["name"]);
      for (const Json& c : suite.value("cases", Json::array()))
        if (c.is_object() && c.contains("id") && c["id"].is_string())
          proof.slugs.insert(case_slug(c["id"].get<std::string>()));
    }
  return proof;
}

std::string without_temporary(std::string name) {
  constexpr std::string_view kEnd = base::AtomicFile::kTemporary;  // of a report that was being written
  if (name.ends_with(kEnd)) name.resize(name.size() - kEnd.size());
  return name;
}

bool is_numbered(const std::string& name, std::string_view begin, std::string_view end) {
  return name.size() > begin.size() + end.size() && name.starts_with(begin) && name.ends_with(end) &&
         std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin.size()),
                     name.end() - static_cast<std::ptrdiff_t>(end.size()), [](char c) { return c >= '0' && c <= '9'; });
}

// A file that the run made in `folder` (suites or logs), by its name.
bool made_by(const Proof& proof, std::string_view folder, const std::string& name) {
  if (folder == "logs")
    return is_numbered(name, "worker-", ".log") || is_numbered(name, "stacks-", ".txt") ||
           is_numbered(name, "waiting-", ".txt");
  const std::string report = without_temporary(name);
  constexpr std::string_view kEnd = ".json";
  return report.ends_with(kEnd) && proof.suites.contains(report.substr(0, report.size() - kEnd.size()));
}

bool is_own_file(const std::string& name) {
  const std::string file = without_temporary(name);
  return std::find(kOwnFiles.begin(), kOwnFiles.end(), file) != kOwnFiles.end();
}

// One that was killed before its journal had its first line: nothing lies there but what it makes before that.
bool hardly_began(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool own =
        (name == "logs" && is_folder(entry.path()) && fs::is_empty(entry.path())) ||
        ((name == RunFolder::kLock || name == reports::kJournalFile || name == ".reserve") && is_file(entry.path()));
    if (!own) return false;
  }
  return true;
}

struct OldRun {
  std::vector<fs::path> files;    // of the run, to be removed
  std::vector<fs::path> folders;  // of the run, to be removed where nothing else is in them; inner ones first
  std::vector<fs::path> foreign;  // among them in suites/, logs/, artifacts/ and bundles/
};

// Something else has the name of what a run makes: a link leads to what is not the run's, and a folder may hold
// anything.
void refuse_foreign(const fs::path& what, const std::string& wanted) {
  if (!is_there(what) || (wanted == "a file" ? is_file(what) : is_folder(what))) return;
  const std::string is = is_link(what) ? "a link" : wanted == "a file" ? "no regular file" : "no folder";
  throw UsageError(
      fmt::format("--out: {} is {}, a run makes {} there; nothing was removed: move it away, or give another folder",
                  what.string(), is, wanted));
}

// What there is of the run's cases: artifacts, bundles.
void add_files_of_cases(OldRun& old, const Proof& proof, const fs::path& below, const OfCases& of) {
  refuse_foreign(below, "a folder");
  if (!is_there(below)) return;
  for (const auto& entry : fs::directory_iterator(below)) {
    if (!is_folder(entry.path()) || !proof.slugs.contains(entry.path().filename())) {
      old.foreign.push_back(entry.path());
      continue;
    }
    for (const auto& file : fs::directory_iterator(entry.path())) {
      const std::string name = without_temporary(file.path().filename());
      const bool own = is_file(file.path()) &&
                       std::any_of(of.files.begin(), of.files.end(), [&](const char* f) { return name == f; });
      (own ? old.files : old.foreign).push_back(file.path());
    }
    old.folders.push_back(entry.path());
  }
  old.folders.push_back(below);
}

// The files of the run that `proof` speaks of. Throws UsageError when something else has the name of one: a link leads
// to what is not the run's, and a folder may hold anything.
OldRun files_of(const Proof& proof, const fs::path& folder) {
  OldRun old;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!is_own_file(entry.path().filename())) continue;
    refuse_foreign(entry.path(), "a file");
    old.files.push_back(entry.path());
  }
  for (const char* name : kOwnFolders) {
    const fs::path below = folder / name;
    refuse_foreign(below, "a folder");
    if (!is_there(below)) continue;
    for (const auto& entry : fs::directory_iterator(below)) {
      const bool own = is_file(entry.path()) && made_by(proof, name, entry.path().filename());
      (own ? old.files : old.foreign).push_back(entry.path());
    }
    old.folders.push_back(below);
  }
  for (const OfCases& of : kOfCases) add_files_of_cases(old, proof, folder / of.folder, of);
  // The journal last: it is the proof, should this be cut short.
  std::stable_partition(old.files.begin(), old.files.end(),
                        [&](const fs::path& file) { return file != folder / reports::kJournalFile; });
  return old;
}

void remove_old_run(const fs::path& folder) {
  const OldRun old = files_of(proof_of(folder), folder);
  for (const fs::path& file : old.files) fs::remove(file);
  for (const fs::path& file : old.foreign)
    base::err("note: --out: {} is not of the run that --force replaces, and stays\n", file.string());
  std::error_code not_empty;
  for (const fs::path& own : old.folders) fs::remove(own, not_empty);
}

bool holds_nothing(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename() != RunFolder::kLock) return false;
  return true;
}

UsageError going_on(const fs::path& folder, const std::string& who) {
  return UsageError(
      fmt::format("--out: {} is in use by {}; wait for its end, or give another folder (--force does not "
                  "touch it)",
                  folder.string(), who));
}

// The nearest folder above that exists: where mkdir would begin.
fs::path existing_parent(fs::path path) {
  while (!path.empty() && !fs::exists(path) && path != path.parent_path()) path = path.parent_path();
  return path;
}

// The link is replaced in one step: it always leads to some run, also while several begin.
void point_latest_to(const fs::path& folder) {
  std::error_code error;  // a convenience: without links the run goes on
  const fs::path link = folder.parent_path() / "latest";
  if (fs::exists(fs::symlink_status(link, error)) && !fs::is_symlink(link, error)) return;
  const fs::path made = folder.parent_path() / (".latest-" + folder.filename().string());
  fs::create_directory_symlink(folder.filename(), made, error);
  if (!error) fs::rename(made, link, error);
  if (error) fs::remove(made, error);
}

}  // namespace

RunFolder::RunFolder(const std::optional<fs::path>& out, const std::string& run_id, bool force) try
    : path_(fs::absolute(out ? *out : fs::path("out") / run_id).lexically_normal()),
      run_id_(run_id),
      by_default_(!out),
      force_(force) {
  if (path_.filename().empty()) path_ = path_.parent_path();  // "folder/"
  if (fs::exists(path_)) {
    if (!fs::is_directory(path_)) throw UsageError(fmt::format("--out: {} is not a folder", path_.string()));
    if (const auto who = base::FolderLock::holder(path_ / kLock)) throw going_on(path_, *who);
    refuse_unusable();
  }
  const fs::path parent = existing_parent(path_);
  if (!fs::is_directory(parent)) throw UsageError(fmt::format("--out: {} is not a folder", parent.string()));
  if (access(parent.c_str(), W_OK | X_OK) != 0)
    throw UsageError(fmt::format("--out: {} cannot be written: {}", parent.string(), std::strerror(errno)));
  const fs::space_info space = fs::space(parent);
  if (space.capacity > 0 && space.available < JournalWriter::kReserveBytes)
    throw InfrastructureError(fmt::format("--out: no space left in {}; a run begins with {} KiB free", parent.string(),
                                          JournalWriter::kReserveBytes >> 10));
} catch (const fs::filesystem_error& error) {
  throw UsageError(fmt::format("--out: {}: {}", error.path1().string(), error.code().message()));
}

void RunFolder::refuse_unusable() const {
  refuse_foreign(path_ / RunFolder::kLock, "a file");
  if (holds_nothing(path_)) return;
  const Proof proof = proof_of(path_);
  if (!proof.run && !(proof.torn && hardly_began(path_)))
    throw UsageError(fmt::format("--out: {} is not empty and not an old run ({}); give a new or empty folder",
                                 path_.string(), proof.why_not));
  if (!force_) throw UsageError(fmt::format("--out: {} holds an old run; --force replaces it", path_.string()));
  (void)files_of(proof, path_);
}

void RunFolder::create() try {
  fs::create_directories(path_);
  path_ = fs::canonical(path_);
  lock_.emplace(path_ / kLock, "run " + run_id_);
  switch (lock_->state()) {
    case base::FolderLock::State::held:
      break;
    case base::FolderLock::State::busy:
      throw going_on(path_, lock_->why());
    case base::FolderLock::State::unwritable:
      throw UsageError(fmt::format("--out: {} cannot be written: {}", path_.string(), lock_->why()));
    case base::FolderLock::State::foreign:
      throw UsageError(fmt::format("--out: {}", lock_->why()));
    case base::FolderLock::State::unlockable:  // the journal notices who else writes there
      base::err("warning: {} cannot be locked: {}; see to it that no other run uses it\n", path_.string(),
                lock_->why());
  }
  refuse_unusable();  // again: until now others could come first
  if (force_) remove_old_run(path_);
  fs::create_directories(path_ / "logs");
  if (by_default_) point_latest_to(path_);
} catch (const fs::filesystem_error& error) {
  throw UsageError(fmt::format("--out: {}: {}", error.path1().string(), error.code().message()));
}

}  // namespace harness
