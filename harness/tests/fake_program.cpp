// A program whose cases misbehave in every way that a worker can, for the tests of the harness. It is also a small
// example of what a program gives the harness.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "harness/process.hpp"
#include "harness/program.hpp"
#include "harness/worker.hpp"

namespace {

using namespace std::chrono_literals;
using harness::Case;
using harness::Context;
using harness::Json;
using harness::Level;
using reports::Severity;

void write_raw(const std::string& text) { (void)!write(harness::Process::kEventFd, text.data(), text.size()); }

Case make(const std::string& name, std::function<void(Context&)> run, Level level = Level::smoke) {
  Case c;
  c.name = name;
  c.level = level;
  c.run = std::move(run);
  return c;
}

void spin_until(std::chrono::steady_clock::time_point end) {
  while (std::chrono::steady_clock::now() < end) {
  }
}

[[gnu::noinline]] void sleep_in_another_thread() { std::this_thread::sleep_for(3600s); }

[[gnu::noinline]] int without_end(int depth) {
  volatile char room[4096];
  room[depth % 4096] = 1;
  return depth < 0 ? 0 : without_end(depth + 1) + room[0];
}

// Nothing wrong: what a good case tells.
std::vector<Case> good(const harness::Settings& settings) {
  std::vector<Case> cases;
  cases.push_back(make("first", [](Context& context) {
    context.phase("the only phase");
    context.metric("answer", 42, "1");
    context.metric("nothing", std::numeric_limits<double>::quiet_NaN(), "1");
    context.fact("table", {{"a", 1}, {"b", std::numeric_limits<double>::infinity()}});
    context.expect_at_most("small", 1, 2, "1", "FAKE-001");
  }));
  for (const std::int64_t n : settings.integers("fake.lengths")) {
    Case c = make("length", [](Context& context) {
      context.fact("seed", context.seed("data"));
      context.finding("FAKE-002", "only a warning");
    });
    c.params = {{"S", std::to_string(n)}};
    cases.push_back(c);
  }
  Case gpu = make("gpu", [](Context&) { std::abort(); });
  gpu.needs_cuda = true;
  cases.push_back(gpu);
  cases.push_back(make(
      "slow",
      [](Context& context) {
        for (int i = 0; i < 20; ++i) {
          std::this_thread::sleep_for(100ms);
          context.progress();
        }
      },
      Level::standard));
  cases.push_back(make(
      "until_told",  // goes on until a file "go" stands in the run's working folder
      [](Context& context) {
        while (!std::filesystem::exists("go")) {
          std::this_thread::sleep_for(10ms);
          context.progress();
        }
      },
      Level::standard));
  return cases;
}

std::vector<Case> bad(const harness::Settings&) {
  return {
      make("segv",
           [](Context& context) {
             context.phase("before the fall");
             std::puts("last words");
             (void)raise(SIGSEGV);
           }),
      make("abort", [](Context&) { std::abort(); }),
      make("overflows_its_stack", [](Context&) { (void)without_end(0); }),
      make("throws_in_a_thread",
           [](Context&) { std::thread([] { throw std::runtime_error("nobody catches it"); }).join(); }),
      make("allocates_too_much", [](Context&) { throw std::bad_alloc(); }),
      make("allocates_too_much_in_a_thread", [](Context&) { std::thread([] { throw std::bad_alloc(); }).join(); }),
      make("cannot_map",
           [](Context&) { throw std::system_error(std::make_error_code(std::errc::not_enough_memory), "mmap"); }),
      make("cannot_allocate",
           [](Context&) { throw std::runtime_error("DefaultCPUAllocator: can't allocate memory: you tried 1 EiB"); }),
      make("is_killed_while_it_waits",
           [](Context&) {
             harness::waits_for(std::string(1000, 'x'));
             harness::waits_for("the oven");
             (void)raise(SIGKILL);
           }),
      make("is_killed_after_it_waited",
           [](Context&) {
             harness::waits_for("the oven");
             harness::waits_for("");
             (void)raise(SIGKILL);
           }),
      make("exit_zero", [](Context&) { _exit(0); }),
      make("throws", [](Context&) { throw std::runtime_error("a reason to throw"); }),
      make("throws_int", [](Context&) { throw 3; }),
      make("half_line",
           [](Context&) {
             write_raw(R"({"event":"metric","case":"bad/half)");
             _exit(0);
           }),
      make("not_json",
           [](Context& context) {
             write_raw("this is not JSON\n");
             context.phase("never reached");
           }),
      make("long_line", [](Context&) { write_raw(std::string(3 << 20, 'x')); }),
      make("liar",
           [](Context&) {
             write_raw(R"({"event":"metric","case":"good/first","name":"x","value":1,"unit":""})"
                       "\n");
           }),
      make("claims_pass_of_other",
           [](Context&) {
             write_raw(R"({"event":"case_end","case":"bad/segv","status":"pass","reason_code":"","reason":""})"
                       "\n");
           }),
      make("says_bye", [](Context&) { write_raw("{\"event\":\"bye\"}\n"); }),
      make("flood",
           [](Context&) {
             const std::string line(1023, 'f');
             for (int i = 0; i < 100 * 1024; ++i) std::puts(line.c_str());
           }),
      make("unknown_code", [](Context& context) { context.finding("FAKE-999", "in no table"); }),
      make("too_much", [](Context& context) { context.fact("everything", std::string(2 << 20, 'x')); }),
      make(
          "fails",
          [](Context& context) {
            context.expect_at_most("nan", std::numeric_limits<double>::quiet_NaN(), 1, "1", "FAKE-001", {{"where", 7}});
          }),
      make("skips_over_finding",
           [](Context& context) {
             context.finding("FAKE-001", "wrong");
             context.skip("unsupported", "cannot");
           }),
      make("after_all", [](Context& context) { context.expect("holds", true, "does not", "FAKE-001"); }),
  };
}

std::vector<Case> stuck(const harness::Settings&) {
  Case limited = make("limited", [](Context& context) {
    const auto end = std::chrono::steady_clock::now() + 60s;
    while (std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(10ms);
      context.progress();
    }
  });
  limited.timeout = 2s;
  return {
      make("sleeps",
           [](Context& context) {
             context.phase("going to bed");
             std::this_thread::sleep_for(3600s);
           }),
      make("ignores_sigterm",
           [](Context&) {
             signal(SIGTERM, SIG_IGN);
             std::this_thread::sleep_for(3600s);
           }),
      make("spins", [](Context&) { spin_until(std::chrono::steady_clock::now() + 3600s); }),
      make("is_stopped",
           [](Context&) {
             harness::waits_for("the oven");
             (void)raise(SIGSTOP);
           }),
      make("main_thread_does_not_answer",
           [](Context&) {
             std::thread other([] { sleep_in_another_thread(); });
             sigset_t all;
             sigfillset(&all);
             pthread_sigmask(SIG_BLOCK, &all, nullptr);
             std::this_thread::sleep_for(3600s);
           }),
      make("works_silently", [](Context&) { spin_until(std::chrono::steady_clock::now() + 1500ms); }),
      limited,
      make("after_all", [](Context&) {}),
  };
}

// More than a group of 256 MiB may have (supervisor_test).
std::vector<Case> hungry(const harness::Settings&) {
  return {make("eats", [](Context&) {
    std::vector<std::vector<char>> eaten;
    for (int i = 0; i < 64; ++i) eaten.emplace_back(16 << 20, static_cast<char>(i));
  })};
}

std::vector<Case> gate(const harness::Settings& settings) {
  const std::string severity = settings.text("fake.gate");
  return {make("opens", [severity](Context& context) {
    if (severity != "open") context.finding("FAKE-001", reports::parse_severity(severity).value(), "the gate says so");
  })};
}

std::vector<Case> speed(const harness::Settings&) {
  return {
      make("below_gate", [](Context& context) { context.expect_at_least("speed", 10, 300, "token/s", "FAKE-003"); })};
}

std::vector<Case> plain(const harness::Settings&) {
  return {make("passes", [](Context&) {})};
}

// A case that a setting brings beside any suite (harness::Suite::guards).
std::vector<Case> guarding(const harness::Settings&) {
  Case c = make(
      "looks", [](Context&) {}, Level::standard);
  c.brought_by = {"fake.guarded"};
  return {c};
}

std::vector<Case> skipping(const harness::Settings&) {
  return {make("skips", [](Context& context) { context.skip("no_reason", "just so"); })};
}

// Cases that end the process they run in.
std::vector<Case> leaving(const harness::Settings&) {
  return {
      make("stays", [](Context&) {}),
      make("calls_exit", [](Context&) { std::exit(0); }),
      make("calls_underscore_exit", [](Context&) { _exit(0); }),
      make("calls_quick_exit", [](Context&) { std::quick_exit(0); }),
      make("calls_the_kernel", [](Context&) { syscall(SYS_exit_group, 0); }),
      make("is_killed", [](Context&) { (void)raise(SIGSEGV); }),
      make("checks_without_a_finding", [](Context& context) {
        write_raw(R"({"event":"check","case":"leaving/checks_without_a_finding","name":"c","pass":false,"measured":2,)"
                  R"("comparator":"<=","bound":1,"unit":""})"
                  "\n");
        context.phase("and goes on");
      })};
}

std::vector<Case> undecided(const harness::Settings&) {
  return {make("cannot_tell", [](Context& context) { context.inconclusive("load", "the machine is busy"); }),
          make("knows_better", [](Context& context) {
            context.finding("FAKE-001", "wrong");
            context.inconclusive("load", "the machine is busy");
          })};
}

// -- a machine on which others are at work, for the cases that take times

bool others_work = false;

base::Load load_of_the_machine() {
  base::Load load;
  load.known = true;
  load.why_unknown.clear();
  load.wall_s = 1;
  load.cores = 2;
  load.own_cores = 0.3;
  load.others_cores = others_work ? 1.7 : 0;
  load.waiting = others_work ? 0.2 : 0;
  if (const char* waiting = std::getenv("FAKE_CROWD"); waiting != nullptr) {  // how long the case waits of each second
    load.waiting = std::atof(waiting);
    load.own_cores = 1 - *load.waiting;
    load.others_cores = 2 - load.own_cores;
  }
  return load;
}

// Cases that are at their time limit, and one that hangs there.
std::vector<Case> crowded(const harness::Settings&) {
  const auto chat_for = [](std::chrono::milliseconds time) {
    return [time](Context& context) {
      context.phase("chatting");
      for (const auto end = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < end;) {
        std::this_thread::sleep_for(5ms);
        context.progress();
      }
    };
  };
  return {make("ends_late", chat_for(600ms)), make("never_ends", chat_for(3600s)),
          make("computes_for_long", [](Context&) { spin_until(std::chrono::steady_clock::now() + 2200ms); }),
          make("falls_asleep", [=](Context& context) {
            chat_for(600ms)(context);
            std::this_thread::sleep_for(3600s);
          })};
}

// A case that others disturb, or not, in each attempt; whose speed is `speeds` in each.
Case timed(const std::string& name, std::array<bool, 2> disturbed, std::array<double, 2> speeds) {
  return make(name, [=, attempt = std::make_shared<std::size_t>(0)](Context& context) {
    others_work = disturbed.at(*attempt);
    context.expect_at_least("speed", speeds.at(*attempt), 300, "token/s", "FAKE-004");
    ++*attempt;
  });
}

std::vector<Case> disturbed(const harness::Settings&) {
  return {timed("then_fast", {true, false}, {100, 900}),
          timed("then_slow", {true, false}, {100, 100}),
          timed("still_disturbed", {true, true}, {100, 100}),
          timed("fast_all_the_same", {true, true}, {900, 900}),
          timed("calm", {false, false}, {900, 900}),
          timed("calm_and_slow", {false, false}, {100, 100}),
          make("not_about_times", [](Context& context) {
            others_work = true;
            context.expect_at_most("error", 2, 1, "1", "FAKE-001");
          })};
}

// -- what a bundle must repeat: sizes, a configuration file, a place

// As the setting says, else as the file says, else 64.
std::int64_t width_of(const harness::Settings& settings) {
  if (const std::int64_t set = settings.integer("fake.width"); set > 0) return set;
  const std::string file = settings.text("fake.file");
  if (file.empty()) return 64;
  std::int64_t width = 0;
  if (!(std::ifstream(file) >> width)) throw harness::UsageError("fake.file: '" + file + "' cannot be read");
  return width;
}

std::vector<Case> sized(const harness::Settings& settings) {
  std::vector<Case> cases;
  cases.push_back(make("wide", [](Context& context) {
    const std::int64_t width = width_of(context.settings());
    if (width >= 10 && width % 2 == 0)
      context.finding("FAKE-001", "too wide", {{"stage", "layers.3.out"}, {"row", width - 1}});
  }));
  for (const std::int64_t n : settings.integers("sized.lengths")) {
    Case c = make("long", [n](Context& context) {
      context.phase("S=" + std::to_string(n));
      if (n >= 20) (void)raise(SIGSEGV);
    });
    c.params = {{"S", std::to_string(n)}};
    cases.push_back(c);
  }
  cases.push_back(make("several", [](Context& context) {  // needs 7 and one that is larger
    bool seven = false, larger = false;
    for (const std::int64_t n : context.settings().integers("sized.lengths")) {
      seven = seven || n == 7;
      larger = larger || n > 7;
    }
    if (seven && larger) context.finding("FAKE-001", "these two", {{"op", "pair"}});
  }));
  cases.push_back(make("fickle", [](Context& context) {  // as the file "fickle" in the working folder says
    std::string word;
    std::ifstream("fickle") >> word;
    if (word == "cannot") context.inconclusive("load", "the machine is busy");
    if (word != "good") context.finding("FAKE-001", "wrong", {{"stage", word}});
  }));
  cases.push_back(make("saves", [](Context& context) {
    std::filesystem::create_directories(context.run_folder() / "artifacts");
    std::ofstream(context.run_folder() / "artifacts" / "input") << "a tensor";
    context.artifact("artifacts/input");
    context.artifact("../outside");
    for (int i = 0; i < 500; ++i) context.fact("fact " + std::to_string(i), i);
    context.fact("large", std::string(100 << 10, 'x'));
    context.finding("FAKE-001", "wrong", {{"large", std::string(100 << 10, 'x')}});
  }));
  cases.push_back(make("traces", [](Context& context) {
    context.fact("trace/0", {{"first", "01"}, {"second", "02"}});
    context.fact("trace/1", {{"first", "03"}, {"second", std::to_string(width_of(context.settings()))}});
  }));
  cases.push_back(make("obeys_a_variable", [](Context& context) {
    if (std::getenv("FAKE_BREAKS") != nullptr) context.finding("FAKE-001", "it is set");
  }));
  return cases;
}

harness::SettingSpec setting(const char* key, harness::SettingType type, const char* value) {
  harness::SettingSpec spec;
  spec.key = key;
  spec.type = type;
  spec.default_value = value;
  spec.meaning = "for the tests";
  return spec;
}

harness::Program make_program() {
  harness::Program program;
  program.name = "fake-program";
  program.version = "1.2.3";
  program.build_id = "0123456789abcdef";
  program.suites = {
      {"after_gate", "runs after the gate", {"middle"}, plain},
      {"gate", "may isolate", {}, gate},
      {"middle", "requires the gate", {"gate"}, plain},
      {"good", "is good", {}, good},
      {"bad", "is bad", {}, bad},
      {"stuck", "hangs", {}, stuck},
      {"hungry", "takes memory", {}, hungry},
      {"speed", "is slow", {}, speed},
      {"skipping", "skips", {}, skipping},
      {"undecided", "cannot tell", {}, undecided},
      {"leaving", "leaves", {}, leaving},
      {"crowded", "takes long", {}, crowded},
      {"disturbed", "takes times", {}, disturbed},
      {"guarding", "guards", {}, guarding, true},
      {"sized", "has sizes", {}, sized},
  };
  program.codes = {{"FAKE-001", "A check failed", "numerics", Severity::block, "a cause", "a next step"},
                   {"FAKE-002", "A warning", "numerics", Severity::warn, "a cause", "a next step"},
                   {"FAKE-003", "Too slow", "performance", Severity::degrade, "a cause", "a next step"},
                   {"FAKE-004", "Too slow", "performance", Severity::degrade, "a cause", "a next step", true}};
  const auto die = [](const harness::FaultSite&) { (void)raise(SIGKILL); };
  program.faults = {{"leave-file",
                     "leaves a file",
                     {"FAKE-001"},
                     [](const harness::FaultSite& site) { std::ofstream(site.run_folder / "planted") << site.run_id; }},
                    {"die-early", "kills the worker before its first case", {"NSA-X011"}, die}};
  program.settings = {setting("fake.lengths", harness::SettingType::integer_list, "[1, 2]"),
                      setting("fake.gate", harness::SettingType::text, "open"),
                      setting("fake.guarded", harness::SettingType::text, ""),
                      setting("fake.width", harness::SettingType::integer, "0"),
                      setting("fake.file", harness::SettingType::text, ""),
                      setting("fake.tool", harness::SettingType::text, ""),
                      setting("sized.lengths", harness::SettingType::integer_list, "[5, 7, 100]")};
  program.variables = {"FAKE_*"};
  program.sizes = {{"fake.width"}, {"sized.lengths", 1, "S"}, {"fake.lengths"}};
  program.executed = {"fake.tool"};
  program.configuration = "fake.file";
  program.options = {{"--gate", "fake.gate", "what the gate does"}};
  program.load = [] { return load_of_the_machine; };
  program.probe_device = [] {
    harness::DeviceProbe probe;
    probe.why_not = "there is no GPU in a test";
    probe.provenance = {{"torch", {{"version", "none"}}}};
    return probe;
  };
  program.provenance = [](const harness::Settings& settings) {
    Json set = {{"FAKE_FLAG", "a b"}};
    if (const char* value = std::getenv("FAKE_BREAKS"); value != nullptr) set["FAKE_BREAKS"] = value;
    return Json{
        {"flags", {{"set", set}}},
        {"config",
         {{"file", settings.text("fake.file")}, {"resolved", {{"fake.width", std::to_string(width_of(settings))}}}}}};
  };
  program.diagnose = [](const harness::Settings& settings, const Json& provenance, const harness::DeviceProbe&) {
    using State = harness::Diagnosis::State;
    harness::Diagnosis found;
    found.rows = {{State::good, "", "the fake is well"}, {State::note, "FAKE-002", "a small thing"}};
    if (settings.text("fake.gate") == "sick") found.rows.push_back({State::problem, "FAKE-001", "it hurts"});
    found.tables = {{"Table", {{"build", provenance.at("build").at("build_id").get<std::string>()}}}};
    return found;
  };
  program.validate = [](const harness::Settings& settings) {
    if (settings.text("fake.gate") == "invalid") throw harness::UsageError("fake.gate cannot be 'invalid'");
    if (width_of(settings) == 16) throw harness::UsageError("fake.width cannot be 16");
  };
  return program;
}

}  // namespace

// Under the address sanitizer, die as without it.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "handle_segv=0:handle_abort=0"; }

int main(int argc, char** argv) {
  // A worker whose libraries do not load.
  if (std::getenv("FAKE_WORKER_DOES_NOT_START") != nullptr && argc > 1 && std::string(argv[1]) == "__worker") {
    std::fputs("cannot open shared object file\n", stderr);
    return 127;
  }
  // The second worker of a run (the first finds the device), which somebody killed before it had work.
  if (const char* count = std::getenv("FAKE_SECOND_WORKER_DIES");
      count != nullptr && argc > 1 && std::string(argv[1]) == "__worker") {
    std::ofstream(count, std::ios::app) << 'x';
    if (std::filesystem::file_size(count) == 2) raise(SIGKILL);
  }
  return harness::run_program(make_program(), argc, argv);
}
