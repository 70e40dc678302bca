// Faults of the worker, of the run's folder and of the settings: what the harness itself must withstand. The worker
// speaks to its supervisor on one descriptor, so a lying or a silent one is planted by what is written there.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "harness/process.hpp"
#include "suites/codes.hpp"
#include "suites/faults/mutants.hpp"
#include "suites/faults/wrapping.hpp"

namespace suites {

namespace process_fault {

namespace fs = std::filesystem;
using harness::FaultSite;

// As in catalogue.cpp: at one length that a single case of s_sweep visits, so that the run goes on after it.
bool struck(const nsa::Call& call) { return call.B == 1 && call.S == call.geometry.l_sel + 1; }

void say(const std::string& line) {
  if (::write(harness::Process::kEventFd, line.data(), line.size()) < 0) std::_Exit(3);
}
std::string event(const char* kind, const std::string& name, const char* more) {
  return std::string(R"({"event":")") + kind + R"(","case":")" + name + '"' + more + "}\n";
}
std::string struck_case(const nsa::Call& call) { return "s_sweep/length[S=" + std::to_string(call.S) + "]"; }

// Deeper than any stack.
int deep(std::int64_t levels) {  // NOLINT(misc-no-recursion): that is the fault
  volatile char own[1 << 12];
  own[0] = static_cast<char>(levels);
  return levels == 0 ? own[0] : deep(levels - 1) + own[0];
}

void spin() {
  for (const volatile bool forever = true; forever;) {
  }
}

struct InCase {
  const char* name;
  const char* what;
  std::vector<std::string_view> codes;
  std::function<void(const nsa::Call&)> deed;
};
std::vector<InCase> in_case() {
  namespace x = harness::codes;
  return {
      {"worker-killed",
       "the worker gets SIGKILL from outside",
       {x::kKilled},
       [](const auto&) { (void)raise(SIGKILL); }},
      {"worker-aborts", "the worker calls abort()", {x::kCrash}, [](const auto&) { std::abort(); }},
      {"worker-stack-overflow",
       "the worker runs out of stack",
       {x::kCrash},
       [](const auto&) { (void)deep(std::int64_t{1} << 40); }},
      {"worker-throws",
       "a case throws",
       {x::kException},
       [](const auto&) { throw std::runtime_error("planted: thrown in the middle of a case"); }},
      {"worker-out-of-memory",
       "an allocation of the case fails",
       {x::kOutOfMemory},
       [](const auto&) { (void)at::empty({std::int64_t{1} << 50}); }},
      {"worker-stopped",
       "the worker is stopped and does not go on",
       {x::kHang},
       [](const auto&) { (void)raise(SIGSTOP); }},
      {"worker-spins", "the worker computes for ever", {x::kHang, x::kTimeout}, [](const auto&) { spin(); }},
      {"worker-says-nonsense",
       "the worker writes a line that is no event",
       {x::kProtocol},
       [](const auto&) { say("this is no event\n"); }},
      {"worker-says-too-much",
       "the worker writes a line of 2 MiB",
       {x::kProtocol},
       [](const auto&) { say(std::string(std::size_t{2} << 20, 'x') + "\n"); }},
      {"worker-speaks-of-another",
       "the worker tells of a case that it is not at",
       {x::kProtocol},
       [](const auto&) { say(event("phase", "s_sweep/length[S=1]", R"(,"name":"elsewhere")")); }},
      {"worker-says-pass",
       "the worker calls the case passed in the middle of it",
       {x::kProtocol},
       [](const auto& call) {
         say(event("case_end", struck_case(call), R"(,"status":"pass","reason_code":"","reason":"")"));
       }},
      {"worker-says-bye",
       "the worker says that it is done in the middle of a case",
       {x::kProtocol, x::kVanished},
       [](const auto&) { say("{\"event\":\"bye\"}\n"); }},
      {"worker-half-an-event",
       "the worker dies in the middle of an event",
       {x::kProtocol, x::kVanished, x::kCrash},
       [](const auto&) {
         say(R"({"event":"chec)");
         std::_Exit(0);
       }},
      {"worker-events-lost",
       "what the worker says does not arrive from there on",
       {x::kHang, x::kVanished, x::kProtocol},
       [](const auto&) {
         const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
         (void)dup2(nowhere, harness::Process::kEventFd);
       }},
  };
}

// What happens to the run's folder once a worker has begun (in every new one again). The run cannot trust its own
// record then, and ends as trouble of the machine.
struct InFolder {
  const char* name;
  const char* what;
  void (*deed)(const FaultSite&);
};
void cut_journal(const FaultSite& site) {
  fs::resize_file(site.run_folder / "events.jsonl", fs::file_size(site.run_folder / "events.jsonl") / 2);
}
void move_journal(const FaultSite& site) {
  std::error_code done_before;
  fs::rename(site.run_folder / "events.jsonl", site.run_folder / "events.moved", done_before);
}
void add_to_journal(const FaultSite& site) {
  std::ofstream(site.run_folder / "events.jsonl", std::ios::app) << "{\"event\":\"run_end\"}\n";
}
// Nothing may grow beyond what the journal has now: to who writes it as good as a full disk.
void fill_disk(const FaultSite& site) {
  const rlimit limit = {fs::file_size(site.run_folder / "events.jsonl") + 512, RLIM_INFINITY};
  if (prlimit(getppid(), RLIMIT_FSIZE, &limit, nullptr) != 0) throw std::runtime_error("planted: prlimit failed");
}
void folder_for_report(const FaultSite& site) { fs::create_directory(site.run_folder / "report.md"); }
void link_for_suites(const FaultSite& site) {
  std::error_code done_before;
  fs::create_directory(site.run_folder / "elsewhere", done_before);
  fs::create_directory_symlink(site.run_folder / "elsewhere", site.run_folder / "suites", done_before);
}
std::vector<InFolder> in_folder() {
  return {
      {"journal-cut", "the journal is cut in half while the run goes on", cut_journal},
      {"journal-moved", "the journal is moved away while the run goes on", move_journal},
      {"journal-added-to", "somebody else writes into the journal", add_to_journal},
      {"disk-full", "the journal cannot grow any more", fill_disk},
      {"folder-for-report", "a folder lies where a report is to be written", folder_for_report},
      {"link-for-suites", "a link lies where the suites' reports are to be written", link_for_suites},
  };
}

struct InSettings {
  const char* name;
  const char* what;
  std::string_view code;
  void (*change)(nsa::Config&);
  // The key where the run is planned so too: no drift, but a plan that cannot be carried out.
  const char* planned = nullptr;
  const char* found_by = "preflight";
};
std::vector<InSettings> in_settings() {
  return {
      {"drift-rope-base", "the configuration in use has another base of rotations", codes::kConfigDrift,
       [](nsa::Config& c) { c.model.rope_base *= 2; }},
      {"drift-window", "the configuration in use has another window", codes::kConfigDrift,
       [](nsa::Config& c) { c.model.nsa.w *= 2; }},
      {"drift-learning-rate", "the configuration in use has another learning rate", codes::kConfigDrift,
       [](nsa::Config& c) { c.train.lr *= 1.0001; }},
      {"drift-accumulation", "the configuration in use accumulates over other batches", codes::kConfigDrift,
       [](nsa::Config& c) { c.train.accumulate_grad_batches += 1; }},
      {"data-missing", "the training data is not there", codes::kFirstBatch,
       [](nsa::Config& c) { c.train.data = "no/such/text"; }, "train.data"},
      {"data-too-short", "one row of training is longer than the data", codes::kFirstBatch,
       [](nsa::Config& c) { c.train.seq_len = std::int64_t{1} << 30; }, "train.seq_len"},
      {"does-not-fit", "the planned step needs more memory than there is", codes::kDoesNotFit,
       [](nsa::Config& c) { c.train.batch_size = std::int64_t{1} << 24; }, "train.batch_size",
       "preflight/memory_estimate"},
  };
}

// What the supervisor is said to have planned, of one key.
void plan(harness::Json& planned, const std::string& key, void (*change)(nsa::Config&)) {
  nsa::Config config;
  change(config);
  planned["config"]["resolved"][key] = nsa::flatten(config).at(key);
}

}  // namespace process_fault

std::vector<Planted> process_mutants(const std::shared_ptr<Seams>& seams) {
  namespace p = process_fault;
  std::vector<Planted> all;
  for (const p::InCase& row : p::in_case()) {
    const auto when_struck = [deed = row.deed](nsa::Ops ops, const nsa::Call& call) {
      if (p::struck(call)) deed(call);
      return ops;
    };
    all.push_back({{row.name, row.what, {row.codes.begin(), row.codes.end()}, plant_in_ops(seams, when_struck)},
                   "harness",
                   "s_sweep"});
  }
  for (const p::InFolder& row : p::in_folder()) {
    Planted fault{{row.name, row.what, {}, row.deed}, "harness", "init_stats"};
    fault.exit_code = static_cast<int>(reports::ExitCode::infrastructure);
    all.push_back(std::move(fault));
  }
  for (const p::InSettings& row : p::in_settings()) {
    const auto plant = [seams, row](const p::FaultSite&) {
      seams->configuration.push_back(row.change);
      if (row.planned != nullptr)
        seams->planned.push_back([row](harness::Json& planned) { p::plan(planned, row.planned, row.change); });
    };
    all.push_back({{row.name, row.what, {std::string(row.code)}, plant}, "environment", row.found_by});
  }
  const auto halt_link = [](const p::FaultSite& site) {
    std::error_code done_before;
    std::filesystem::create_symlink("nowhere", site.run_folder / ".HALT", done_before);
  };
  all.push_back({{"halt-link", "a .HALT that is a link to nowhere", {std::string(codes::kStaleHalt)}, halt_link},
                 "environment",
                 "preflight"});
  const auto flag_set = [](const p::FaultSite&) { setenv("NSA_FORCE_PARITY", "1", 1); };
  all.push_back({{"flag-set-late",
                  "an NSA_* variable is set in the worker alone",
                  {std::string(codes::kFlagOrigin), std::string(codes::kEffectiveFlags),
                   std::string(codes::kUnexpectedFlags), std::string(codes::kFlagIgnored)},
                  flag_set},
                 "environment",
                 "preflight,flag_matrix"});
  return all;
}

}  // namespace suites
