// One report of many hosts that ran the same validation: what each found, in what they differ, who is slow. merge() is
// a pure function of the hosts; four writers lay it out (to_text, to_markdown, to_html, to_json;
// schema/fleet-1.schema.json).
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reports/model.hpp"
#include "reports/slow_hosts.hpp"

namespace reports {

inline constexpr const char* kFleetSchema = "nsa-validate/fleet";
inline constexpr const char* kFleetSchemaVersion = "1.0.0";
inline constexpr const char* kFleetFile = "fleet.json";

// What a fleet keeps of one run; the run itself is let go, so that a thousand fit.
struct FleetHost {
  enum class State {
    ended,
    unfinished,  // its journal has no end, or it was interrupted
    running,     // somebody holds its folder: taken as far as it goes
    unreadable,  // `trouble` names the file and what is wrong
    missing      // expected, and there is no folder of it, or nothing of a run in it
  };
  // The findings of one code.
  struct Found {
    std::string code, title, category, message, where, next;  // the first one's message and case ("": of the run)
    Severity severity = Severity::info;                       // the worst
    int times = 0;
  };
  struct Measured {
    std::string unit;
    double value = 0;   // finite
    bool busy = false;  // others were at work on the machine meanwhile
  };
  // The one that its run used: the first that it saw.
  struct Gpu {
    std::string uuid, bus_id;  // "" where it is not told
    std::string visible;       // CUDA_VISIBLE_DEVICES
  };
  std::string name;     // the host's, with ".RANK" or ":gpuN" where a host has several
  std::string on_host;  // the host's alone where the name has ":gpuN", else ""
  std::optional<Gpu> gpu;
  std::string folder;  // "" where there is none
  State state = State::missing;
  std::string trouble;
  bool incompatible = false;  // unreadable, because of another version's schema
  std::string run_id, level, device, started;
  std::optional<std::int64_t> rank, size;  // in its launch (harness/launch.hpp)
  std::string launch;                      // which one: launcher and job
  double duration_s = 0;
  Verdict verdict = Verdict::not_ready;  // these three: as assess() says of the run; of no meaning without one
  ExitCode exit_code = ExitCode::inconclusive;
  std::vector<std::string> reasons;
  Totals totals;
  std::vector<std::pair<std::string, Status>> suites;
  std::vector<Found> findings;
  std::map<std::string, std::string> facts;  // what went in, leaf by leaf: "cuda.driver" -> "580.82"
  std::map<std::string, std::string> bits;   // what equal hosts compute alike: "forward/packed: initial_loss" -> "5.7"
  std::map<std::string, Measured> figures;   // of speed and use: "throughput/step: tokens_per_s"
  std::set<std::string> no_number;           // figures that are NaN or infinite; in neither of the two
  std::string kind;                          // of the device: figures and bits of other kinds are not compared
  [[nodiscard]] bool has_run() const { return state != State::unreadable && state != State::missing; }
};

// Of a case's facts a fleet wants these: for read_journal(), whose summary is enough for host_of().
[[nodiscard]] bool fact_of_fleet(std::string_view key);
// The host of a run that was read from `folder`, in state `ended` or `unfinished`. Throws std::invalid_argument where
// the run has more facts or figures than a fleet keeps of a host.
[[nodiscard]] FleetHost host_of(const Run& run, const std::string& folder);
// One whose run did not begin; `folder`: where it should be, or "".
[[nodiscard]] FleetHost missing_host(const std::string& name, const std::string& folder, const std::string& why);
[[nodiscard]] FleetHost unreadable_host(const std::string& name, const std::string& folder, const std::string& trouble,
                                        bool incompatible);

// What can be wrong with a fleet beyond what its hosts found themselves.
enum class FleetTrouble {
  missing,
  unexpected,
  unreadable,
  twice,
  other_validation,
  other_machine,
  slow,
  other_bits,
  no_number
};

// One code, however many hosts have it.
struct FleetFinding {
  Finding first;                   // code, title, severity (the worst), category, next; message of the first host
  bool of_fleet = false;           // of the hosts together; else the hosts found it themselves
  std::string where;               // case of the first host's
  std::vector<std::size_t> hosts;  // by their place
  int times = 0;
};

// A value that is not the same on all hosts that tell it.
struct FleetDifference {
  enum class Kind {
    validation,  // the hosts did not run the same thing: program, build, settings, flags, suites
    machine,     // hardware, driver, libraries, environment
    bits         // equal hosts computed something else
  };
  struct Group {
    std::string value;
    std::vector<std::size_t> hosts;
  };
  std::string name;
  Kind kind = Kind::machine;
  bool majority = false;      // groups[0] is more than half of the hosts
  bool individual = false;    // nearly every host has a value of its own: nobody is odd
  std::vector<Group> groups;  // the largest first; "" is the value of hosts that do not tell it
};

struct Fleet {
  std::vector<FleetHost> hosts;          // by name
  std::vector<std::string> suite_names;  // of all hosts
  std::vector<FleetFinding> findings;    // the worst first
  std::vector<FleetDifference> differences;
  std::vector<FleetFigure> figures;  // that slow hosts were looked for in
  SlowHosts slow;
  Verdict verdict = Verdict::not_ready;
  ExitCode exit_code = ExitCode::internal;
  std::vector<std::string> reasons;
  std::optional<std::size_t> expected;  // hosts
};

struct FleetOptions {
  std::optional<std::size_t> expected_number;
  std::vector<std::string> expected_names;  // with or without ".RANK" or ":gpuN"
  // The code of a trouble, as the program's table has it: code, title, severity, category, cause, next.
  std::function<Finding(FleetTrouble)> code;
};

// Verdict READY and exit code 0 come together, and only where all hosts are READY, none is missing, unreadable or
// without its end, and no finding of the fleet itself is failing.
[[nodiscard]] Fleet merge(std::vector<FleetHost> hosts, const FleetOptions& options);

// For a terminal; its last line begins with "merge: ".
[[nodiscard]] std::string to_text(const Fleet& fleet);
[[nodiscard]] std::string to_markdown(const Fleet& fleet);
[[nodiscard]] std::string to_html(const Fleet& fleet);
[[nodiscard]] Json to_json(const Fleet& fleet);
// fleet.json, fleet.md, fleet.html in `folder`, which is made; as write_all() (writers.hpp). Returns what was not
// written.
[[nodiscard]] std::vector<std::string> write_fleet(const Fleet& fleet, const std::filesystem::path& folder);

[[nodiscard]] std::string_view to_string(FleetHost::State state);
[[nodiscard]] std::string_view to_string(FleetDifference::Kind kind);

}  // namespace reports
