#include "fuzz/targets.hpp"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/files.hpp"
#include "harness/bundles.hpp"
#include "harness/command_line.hpp"
#include "harness/protocol.hpp"
#include "nsa/bench/peers.hpp"
#include "nsa/config.hpp"
#include "nsa/train/checkpoint.hpp"
#include "nsa/train/files.hpp"
#include "nsa/train/hash.hpp"
#include "nsa/train/run/exit_code.hpp"
#include "nsa/train/run/halt_file.hpp"
#include "nsa/train/run/options.hpp"
#include "nsa/train/run/records.hpp"
#include "nsa/train/run/step_table.hpp"
#include "nsa/train/run/training_folder.hpp"
#include "nsa/train/stream.hpp"
#include "reports/bundle.hpp"
#include "reports/causes.hpp"
#include "reports/compare.hpp"
#include "reports/fleet.hpp"
#include "reports/journal.hpp"
#include "reports/read_run.hpp"
#include "reports/writers.hpp"
#include "suites/probes/memory_law.hpp"
#include "suites/program.hpp"
#include "suites/throughput/baseline.hpp"

namespace fuzz {

namespace fs = std::filesystem;

namespace {

using Words = std::vector<std::string>;

const Words kYamlWords = {"[",           "]",        "{",      "}",         ": ",       "- ",   ", ",
                          "\n  ",        "&a ",      "*a",     "!!binary ", "---\n",    "#",    "'",
                          "\"",          "| \n",     "> \n",   "? ",        "~",        "null", "true",
                          "%YAML 9.9\n", "model:\n", "nsa:\n", "train:\n",  "<<: *a\n", "...\n"};
const Words kJsonWords = {"[",
                          "]",
                          "{",
                          "}",
                          ":",
                          ",",
                          "\"",
                          "\\",
                          "\\u0000",
                          "\\ud800",
                          "null",
                          "true",
                          "false",
                          "[]",
                          "{}",
                          "\"__metadata__\":",
                          "\"dtype\":\"BF16\"",
                          "\"shape\":[0,9223372036854775807]",
                          "\"event\":\"case_end\"",
                          "\"case\":",
                          "\"seq\":",
                          "-1",
                          "1e400"};

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::exists(folder)) return {};  // nothing has broken this reader yet
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> texts;
  texts.reserve(files.size());
  for (const fs::path& file : files) texts.push_back(base::read_head(file, Mutator::kMostBytes));
  return texts;
}

std::vector<std::string> operator+(std::vector<std::string> one, const std::vector<std::string>& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

void write(const fs::path& file, const std::string& text) { std::ofstream(file, std::ios::binary) << text; }

// One argument a line, as a shell would pass them on: an argument ends at a NUL.
template <typename Parse>
void parse_lines(const std::string& input, const Parse& parse) {
  std::vector<std::string> arguments = {"program"};
  std::istringstream lines(input);
  for (std::string line; std::getline(lines, line);) arguments.emplace_back(line.c_str());
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  parse(static_cast<int>(arguments.size()), argv.data());
}

// A checkpoint as it is written, to begin with.
std::string a_checkpoint(const fs::path& file) {
  nsa::train::TrainState state;
  state.tensors = {{"model/a", at::arange(6, at::kFloat).view({2, 3})}, {"rng/cpu", at::arange(5, at::kByte)}};
  state.facts = {{"step", 3}, {"loss", 1.5}, {"tokens", 30}};
  write_checkpoint(file, state);
  std::string text = base::read_head(file, Mutator::kMostBytes);
  fs::remove(file);
  return text;
}

// With a header length and a checksum that fit what has become of it, so that more than these two is read.
std::string mended(std::string text) {
  constexpr std::size_t kWord = 8;
  const std::size_t brace = text.rfind('}');
  if (text.size() < 3 * kWord || brace == std::string::npos || brace < kWord) return text;
  const std::uint64_t length = brace + 1 - kWord;
  std::memcpy(text.data(), &length, kWord);
  nsa::train::Hash64 hash;
  hash.add(text.data(), text.size() - kWord);
  const std::uint64_t value = hash.value();
  std::memcpy(text.data() + text.size() - kWord, &value, kWord);
  return text;
}

void read_one_checkpoint(const fs::path& file, const std::string& text) {
  write(file, text);
  try {
    (void)nsa::train::read_checkpoint(file);
  } catch (const nsa::train::CheckpointInvalid&) {
  }
}

void read_data(const fs::path& file, const std::string& text, bool skip) {
  write(file, text);
  try {
    const auto stream = nsa::train::open_stream({.data = file.string(),
                                                 .batch_size = 2,
                                                 .seq_len = 16,
                                                 .validation_share = 0.2,
                                                 .skip_bad_lines = skip,
                                                 .max_line_bytes = 4096});
    while (stream->next().tokens.defined()) {
    }
  } catch (const std::runtime_error&) {
  }
}

// KEY=VALUE, one a line, as --set of either program.
void set_values(const std::string& input, const harness::Program& program, const fs::path& model) {
  harness::Settings settings(all_setting_specs(program));
  std::vector<nsa::Override> overrides;
  std::istringstream lines(input);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = line.substr(0, equals), value = line.substr(equals + 1);
    overrides.push_back({key, value, "--set"});
    try {
      settings.set(key, value, "--set");
    } catch (const harness::UsageError&) {
    }
  }
  try {
    (void)nsa::load_config(model, overrides);
  } catch (const nsa::ConfigInvalid&) {
  }
}

// What a run finds in its folder when it goes on: its own record and somebody's .HALT.
void read_run_folder(const fs::path& folder, const std::string& text) {
  fs::create_directories(folder);
  write(folder / "run.json", text);
  write(folder / ".HALT", text);
  (void)nsa::train::HaltFile(folder, "20261121T013105Z-8c1f").look();
  try {
    nsa::train::TrainingFolder run(folder, nsa::train::TrainingFolder::Mode::resume);
    const nlohmann::json start = {{"flags", {{"use_cuda", {{"value", true}}}}}};
    (void)nsa::train::changes_since(run.last_start(), start);
    run.begin({{"train.lr", "0.001"}}, start);
  } catch (const nsa::train::UsageError&) {
  }
}

void read_peers(const std::string& input) {
  std::istringstream text(input);
  try {
    const auto peers = nsa::bench::Peers::parse(text, "peers.csv");
    (void)peers.measured_on("NVIDIA H200");
    (void)peers.fastest({"c", nsa::bench::kDense, "fwd", "", 2048});
  } catch (const nsa::bench::PeersInvalid&) {
  }
}

// Both ways, against a run that is what it should be.
void compare_runs(reports::Run run, reports::Run good) {
  good.id = "good";
  run.id = "read";
  reports::find_causes(run, {});
  for (const bool first : {true, false}) {
    std::vector<reports::NamedRun> runs{{"read", run}, {"good", good}};
    if (!first) std::swap(runs[0], runs[1]);
    const reports::Comparison comparison = reports::compare(runs);
    (void)reports::to_text(comparison);
    (void)reports::to_json(comparison).dump();
  }
}

// As hosts of a fleet, with all of its texts.
void merge_runs(const reports::Run& run, const reports::Run& good) try {
  std::vector<reports::FleetHost> hosts{reports::host_of(run, "run/read"), reports::host_of(good, "run/good"),
                                        reports::host_of(good, "run/again")};
  reports::FleetOptions options;
  options.code = [](reports::FleetTrouble) { return reports::Finding{}; };
  const reports::Fleet fleet = reports::merge(std::move(hosts), options);
  (void)reports::to_text(fleet);
  (void)reports::to_markdown(fleet);
  (void)reports::to_html(fleet);
  (void)reports::dump(reports::to_json(fleet));
} catch (const std::invalid_argument&) {  // more figures than a fleet keeps
}

// Of the first case that failed.
std::string a_bundle(const reports::Run& run) {
  for (const reports::Suite& suite : run.suites)
    for (const reports::Case& c : suite.cases)
      if (reports::tally(reports::outcome(c)) == reports::Tally::failed)
        return harness::sealed(reports::bundle_of(run, c, {}, reports::Json::array()));
  throw std::logic_error("no case of the sample failed");
}

// What the readers are given, and where they may write.
struct Inputs {
  fs::path source, scratch;
  std::shared_ptr<harness::Program> program;
  [[nodiscard]] Words corpus(const char* name) const { return files_in(source / "fixtures" / "fuzz" / name); }
  [[nodiscard]] Words configs(const char* folder) const { return files_in(source / "configs" / folder); }
};

// Files that say what is to be done.
void add_configurations(std::vector<Target>& all, const Inputs& at) {
  all.push_back({"settings", "--config of nsa-validate",
                 [program = at.program, file = at.scratch / "settings.yaml"](const std::string& input) {
                   write(file, input);
                   harness::Settings settings(all_setting_specs(*program));
                   try {
                     settings.load_file(file);
                   } catch (const harness::UsageError&) {
                   }
                 },
                 at.corpus("yaml") + at.corpus("settings") + at.configs("gates"), kYamlWords});
  all.push_back({"config", "a model's and training's configuration",
                 [](const std::string& input) {
                   try {
                     (void)nsa::parse_config(input, "fuzz.yaml");
                   } catch (const nsa::ConfigInvalid&) {
                   }
                 },
                 at.corpus("yaml") + at.configs("models") + at.configs("train"), kYamlWords});
  all.push_back({"memory_laws", "configs/memory",
                 [folder = at.scratch / "laws"](const std::string& input) {
                   fs::create_directories(folder);
                   write(folder / "laws.yaml", input);
                   try {
                     (void)suites::probes::load_memory_laws(folder);
                   } catch (const std::runtime_error&) {
                   }
                 },
                 at.corpus("yaml") + at.configs("memory"), kYamlWords});
}

// Files that a run of nsa-validate leaves.
void add_results(std::vector<Target>& all, const Inputs& at) {
  const fs::path sample = at.source / "reports/tests/data/mixed.events.jsonl";
  const auto good = std::make_shared<reports::Run>(reports::read_journal(sample));
  all.push_back({"journal", "events.jsonl, the five reports that are made of it, and its comparison",
                 [good](const std::string& input) {
                   std::istringstream stream(input);
                   reports::Run run;
                   try {
                     run = reports::read_journal(stream, "events.jsonl");
                   } catch (const reports::JournalError&) {
                     return;
                   }
                   (void)reports::to_json(run).dump();
                   (void)reports::to_markdown(run);
                   (void)reports::to_html(run);
                   (void)reports::to_junit(run);
                   (void)reports::to_console(run, true);
                   compare_runs(run, *good);
                 },
                 at.corpus("journal") + Words{base::read_head(sample, Mutator::kMostBytes)}, kJsonWords});
  all.push_back({"host", "events.jsonl of a host, in a fleet",
                 [good](const std::string& input) {
                   std::istringstream stream(input);
                   try {
                     merge_runs(reports::read_journal(stream, "events.jsonl", reports::fact_of_fleet), *good);
                   } catch (const reports::JournalError&) {
                   }
                 },
                 at.corpus("journal") + Words{base::read_head(sample, Mutator::kMostBytes)}, kJsonWords});
  all.push_back({"report", "report.json of a run that is compared",
                 [good](const std::string& input) {
                   std::istringstream stream(input);
                   reports::Run run;
                   try {
                     run = reports::read_report(stream, "report.json");
                   } catch (const reports::JournalError&) {
                     return;
                   }
                   compare_runs(run, *good);
                 },
                 Words{reports::to_json(*good).dump()}, kJsonWords});
  all.push_back({"bundle", "bundle.json of a case that is replayed",
                 [](const std::string& input) {
                   try {
                     const reports::Bundle bundle = reports::parse_bundle(input, "bundle.json");
                     (void)reports::to_string(bundle.signature);
                     (void)reports::same_failure(bundle.signature, bundle.signature);
                   } catch (const reports::JournalError&) {
                   }
                 },
                 Words{a_bundle(*good)}, kJsonWords});
  all.push_back({"baseline", "throughput.baseline, an earlier report.json",
                 [file = at.scratch / "report.json"](const std::string& input) {
                   write(file, input);
                   try {
                     (void)suites::throughput_cases::read_baseline(file);
                   } catch (const std::runtime_error&) {
                   }
                 },
                 at.corpus("baseline"), kJsonWords});
}

// Files that training reads or leaves, and nsa-bench's.
void add_training(std::vector<Target>& all, const Inputs& at) {
  const fs::path checkpoint = at.scratch / "step.safetensors";
  all.push_back({"checkpoint", "a checkpoint: its header, its tensors",
                 [=](const std::string& input) {
                   read_one_checkpoint(checkpoint, input);
                   read_one_checkpoint(checkpoint, mended(input));
                 },
                 at.corpus("checkpoint") + Words{a_checkpoint(checkpoint)}, kJsonWords});
  all.push_back({"data", "training data in JSONL",
                 [file = at.scratch / "data.jsonl"](const std::string& input) {
                   read_data(file, input, false);
                   read_data(file, input, true);
                 },
                 at.corpus("data"), kJsonWords});
  all.push_back({"metrics",
                 "metrics.csv of a run that goes on",
                 [file = at.scratch / "metrics.csv"](const std::string& input) {
                   write(file, input);
                   nsa::train::StepTable(file, {"loss", "lr"}, 3).append(4, std::array<std::optional<double>, 2>{1.5});
                 },
                 at.corpus("metrics"),
                 {",", "\n", "step,loss,lr\n", "-1", "nan", "inf", "1e400", "9223372036854775808"}});
  all.push_back({"run_folder", "run.json and .HALT of a run that goes on",
                 [folder = at.scratch / "run"](const std::string& input) { read_run_folder(folder, input); },
                 at.corpus("run_folder"), kJsonWords});
  all.push_back({"peers",
                 "nsa-bench's file of other implementations' times",
                 read_peers,
                 at.corpus("peers") + files_in(at.source / "fixtures" / "bench"),
                 {",", "\n", "# ", "index", "config", "S", "ms", "-1", "nan", "1e400"}});
}

// What stands on the command line.
void add_arguments(std::vector<Target>& all, const Inputs& at) {
  all.push_back({"set_values", "--set of nsa-validate and of nsa-train, one a line",
                 [program = at.program, model = at.source / "configs/models/tiny.yaml"](const std::string& input) {
                   set_values(input, *program, model);
                 },
                 at.corpus("set_values"), kYamlWords});
  all.push_back({"command_line",
                 "the arguments of nsa-validate, one a line",
                 [program = at.program](const std::string& input) {
                   parse_lines(input, [&](int argc, char** argv) {
                     try {
                       (void)harness::parse_command_line(*program, argc, argv);
                     } catch (const harness::UsageError&) {
                     }
                   });
                 },
                 at.corpus("command_line"),
                 {"--", "-", "=", "--set\n", "--suite\n", "--config\n", "smoke", "list\n", "--help\n", ",", "[", "]",
                  "%s", "*"}});
  all.push_back({"train_command_line",
                 "the arguments of nsa-train, one a line",
                 [](const std::string& input) {
                   parse_lines(input, [](int argc, char** argv) {
                     try {
                       (void)nsa::train::parse_options(argc, argv);
                     } catch (const nsa::train::UsageError&) {
                     }
                   });
                 },
                 at.corpus("train_command_line"),
                 {"--", "-", "=", "--set\n", "--steps\n", "train.lr=", "[", "]", "1e9", "--resume\n"}});
}

}  // namespace

std::vector<Target> targets(const fs::path& source, const fs::path& scratch) {
  const Inputs at{source, scratch, std::make_shared<harness::Program>(suites::make_program())};
  std::vector<Target> all;
  for (const auto add : {add_configurations, add_results, add_training, add_arguments}) add(all, at);
  return all;
}

}  // namespace fuzz
