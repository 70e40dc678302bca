// A validation program: the harness plus what a program adds to it. main() builds one and hands it argv.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "harness/codes.hpp"
#include "harness/load_watch.hpp"
#include "harness/settings.hpp"
#include "harness/suite.hpp"
#include "reports/causes.hpp"
#include "reports/json.hpp"

namespace harness {

// What a worker may know when a fault is planted in it.
struct FaultSite {
  std::filesystem::path run_folder;
  std::string run_id;
};

struct Fault {
  std::string name;                             // "zero-gate-init"
  std::string what;                             // what it does to the product or its environment
  std::vector<std::string> expected_codes;      // at least one of these must be found
  std::function<void(const FaultSite&)> plant;  // in the worker, before its first case; again in every new worker
};

// A command-line flag of the program's own: `--expect FILE` is short for `--set preflight.expect=FILE`.
struct OptionAlias {
  std::string flag;     // "--expect"
  std::string setting;  // "preflight.expect"
  std::string meaning;
};

// A verb of the program's own, which its main() does before the harness sees the command line: for --help and for the
// nearest word. It is the first word then.
struct OwnVerb {
  std::string name;     // "adapter"
  std::string meaning;  // "write or check an adapter: ..."
};

// What the supervisor learns of the machine from a short-lived worker, because it must not touch CUDA or torch itself.
struct DeviceProbe {
  bool cuda_usable = false;
  std::string why_not;               // when it is not
  Json provenance = Json::object();  // torch, cuda runtime, driver, gpus: merged into the run's provenance
};

// What `doctor` prints of a program's own.
struct Diagnosis {
  enum class State { good, note, problem };  // a problem is what must be mended before a run: exit code not 0
  struct Row {
    State state = State::good;
    std::string code;  // finding code, "" for a good row; its next step is printed unless `next` says more
    std::string what;  // what was seen, with numbers
    std::string next = {};
  };
  struct Table {
    std::string title;
    std::vector<std::vector<std::string>> rows;  // cells; columns are aligned
  };
  std::vector<Row> rows;
  std::vector<Table> tables;
};

struct Program {
  std::string name;                  // "nsa-validate"
  std::string version;               // "0.1.0"
  std::string build_id;              // compiled in: hash of the sources that the binary was built from
  std::filesystem::path source_dir;  // compiled in: where those sources were, to compare against; may not exist
  std::vector<Suite> suites;         // in the order of running
  std::vector<Code> codes;           // in addition to own_codes()
  std::vector<reports::CauseRule> causes;
  std::vector<Fault> faults;
  std::vector<SettingSpec> settings;
  std::vector<OptionAlias> options;

  std::function<DeviceProbe()> probe_device;  // called in a worker only
  // Called in the supervisor when it plans: no torch, no CUDA. NSA_* flags, resolved configuration and its hash. By
  // convention "flags.set" (name -> value) are the environment variables that change what the program does; they stand
  // in front of every repro command. What the harness itself adds: provenance.hpp.
  std::function<Json(const Settings&)> provenance;
  // Called in the supervisor before planning; throws UsageError for what cannot work (a bad model file, a bad flag).
  std::function<void(const Settings&)> validate;
  // Called by `doctor`, in its own process: no torch, no CUDA context. `provenance` is all that the harness and the
  // program know of the machine by then; it lacks what a worker could not tell.
  std::function<Diagnosis(const Settings&, const Json& provenance, const DeviceProbe&)> diagnose;
  // The executable that is asked for the device; empty: this one.
  std::filesystem::path worker;
  // Called in the worker after every case: empty when the process is still healthy, else what is wrong (a sticky CUDA
  // error); an unhealthy worker is replaced.
  std::function<std::string()> health;
  LoadSource load;  // how busy the machine is, for cases and for their limits; empty: as it is, and a test has its own
  std::vector<OwnVerb> verbs;

  // -- what a bundle needs (bundles.hpp)
  std::vector<std::string> variables;  // names or patterns of the environment variables that the program obeys
  std::vector<SizeSetting> sizes;      // the program's own and those of its suites
  // Settings that name something which is executed: a bundle cannot set them, its user must.
  std::vector<std::string> executed;
  // The setting that names the file which provenance tells in full as "config" {file, resolved: {key: value}}; each of
  // those keys is a setting too, which stands above the file.
  std::string configuration;
};

// Runs the command line (verbs: run, list, describe, report, compare, merge, replay, explain, doctor, schema, version;
// hidden: __worker) and returns the process's exit code. Never throws. See README.md for the interface.
[[nodiscard]] int run_program(const Program& program, int argc, char** argv);

// Where configs/ and fixtures/ lie: <prefix>/share/<name> beside an installed binary, else the source tree that it was
// built from. Throws UsageError when neither exists.
[[nodiscard]] std::filesystem::path data_folder(const Program& program);

}  // namespace harness
