// The bundle of a failing case: a file with all that repeats it, as values, and how it failed. Whoever has it needs no
// other file of the run. Pure: who makes, seals, writes and replays it is the harness (harness/bundles.hpp,
// replay.hpp).
//
//  schema "nsa-validate/bundle", schema_version, seal (of all the rest, harness::seal_of)
//  program      {name, version}
//  run          {id, started, level, complete}
//  case         {id, suite, level, status, phase, reason}
//  device       cpu | cuda
//  seed         the master seed
//  faults       names of what was planted
//  settings     {key: {value, origin}} of those that are not at their defaults, but for run.seed and run.device, which
//               are seed and device
//  resolved     {file, values: {key: value}}: what the file says that a setting names (provenance "config")
//  environment  {NAME: value} of the recorded variables that were set
//  provenance   what the result depends on besides: source, build, host, torch, cuda, gpus, ...
//  signature    how it failed (Signature)
//  findings     as told, bounded; findings_left_out
//  inputs       [{path, hash, bytes}] of the files that the case has left in the run's folder
//  journal      {events: [...], left_out}: of this case, bounded
//  minimised    {from, tries, seconds, sizes: [{setting, before, after}]}, of one that `replay --minimize` has made
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "reports/model.hpp"

namespace reports {

inline constexpr const char* kBundleSchema = "nsa-validate/bundle";
inline constexpr const char* kBundleVersion = "1.0.0";
inline constexpr const char* kBundleFolder = "bundles";          // of a run; with a folder for each failing case
inline constexpr const char* kBundleFile = "bundle.json";        // in there
inline constexpr const char* kMinimisedFile = "minimised.json";  // beside it
inline constexpr std::size_t kMostBundleBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMostBundles = 32;  // of a run

// How a case has failed: what became of it, the code of its worst finding, and where that is, in words. Numbers (a
// layer, a row, a length) are no part of it: a smaller case that fails in the same way has others.
struct Signature {
  std::string status;  // fail, error, crash, hang, ... (reports::Status)
  std::string code;    // "" where no finding says what is wrong; then reason_code does
  std::string severity;
  std::string reason_code;
  Json place = Json::object();     // op, stage, tensor, output, ...: words, digits as '#'
  Json at = Json::object();        // layer, row, head, ...: told, not compared
  std::vector<std::string> codes;  // of all failing findings, sorted; told, not compared
};
[[nodiscard]] Signature signature_of(const Case& c);
// Status, code and place; the reason where there is no code.
[[nodiscard]] bool same_failure(const Signature& a, const Signature& b);
[[nodiscard]] std::string to_string(const Signature& signature);  // "fail, NSA-A001 (block), stage layers.#.o, row 511"

// The events of one case in a journal.
struct Slice {
  Json events = Json::array();
  std::size_t left_out = 0;
};
// All but its seal. `inputs` as above.
[[nodiscard]] Json bundle_of(const Run& run, const Case& c, const Slice& slice, const Json& inputs);

struct Bundle {
  Json json;  // as it stands
  std::string program, case_id, suite, device;
  std::uint64_t seed = 0;
  std::vector<std::string> faults;
  struct Setting {
    std::string key, value, origin;
  };
  std::vector<Setting> settings;
  std::string resolved_file;
  std::map<std::string, std::string> resolved, environment;
  Signature signature;
};
// Throws JournalError (journal.hpp) for what is no bundle or a damaged one: `name`, the key and what is wrong with it;
// `incompatible` is set for another schema major. A key that this version does not know is an error too.
[[nodiscard]] Bundle parse_bundle(const std::string& text, const std::string& name);

// The name is that of a file below a folder: relative, and no part of it leads up.
[[nodiscard]] bool stays_below(std::string_view path);

}  // namespace reports
