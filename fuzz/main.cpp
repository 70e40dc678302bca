// nsa-fuzz: reads mutated files and arguments until the time is over; exit 1 when a reader crashed, hung, asked for
// memory without bounds or threw what it does not document.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "fuzz/targets.hpp"

namespace fs = std::filesystem;

namespace {

struct Options {
  std::vector<std::string> names;
  fs::path source = NSA_FUZZ_SOURCE, save = ".", input;
  double seconds = 5;
  std::uint64_t seed = 1;
};

// Removed with all that is in it.
struct Scratch {
  fs::path path = fs::temp_directory_path() / fmt::format("nsa-fuzz-{}", getpid());
  Scratch() { fs::create_directories(path); }
  ~Scratch() { fs::remove_all(path); }
};

std::string read_all(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw CLI::RuntimeError("--input " + file.string() + " cannot be read", 2);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool one_input(const fuzz::Target& target, const fs::path& input) {
  const std::string what = fuzz::try_input(target, read_all(input));
  fmt::print("{}: {}\n", target.name, what.empty() ? "read or refused, as documented" : what);
  return what.empty();
}

bool many_inputs(const fuzz::Target& target, const Options& options) {
  const fuzz::Outcome outcome = fuzz::fuzz(target, options.seed, options.seconds);
  fmt::print("{}: {} inputs, {} failed\n", target.name, outcome.inputs, outcome.failures.size());
  for (const fuzz::Failure& failure : outcome.failures) {
    const fs::path file = options.save / fmt::format("{}-{}-{}.input", target.name, options.seed, failure.number);
    std::ofstream(file, std::ios::binary) << failure.input;
    fmt::print("  {}: {}\n    again: nsa-fuzz {} --input {}\n", failure.number, failure.what, target.name,
               file.string());
  }
  return outcome.failures.empty();
}

int run(const Options& options) {
  const Scratch scratch;
  std::vector<fuzz::Target> targets = fuzz::targets(options.source, scratch.path);
  for (const std::string& name : options.names) {
    if (std::any_of(targets.begin(), targets.end(), [&](const auto& target) { return target.name == name; })) continue;
    fmt::print(stderr, "nsa-fuzz: '{}' is no target; there are:\n", name);
    for (const fuzz::Target& target : targets) fmt::print(stderr, "  {:20}{}\n", target.name, target.meaning);
    return 2;
  }
  std::erase_if(targets, [&](const fuzz::Target& target) {
    return !options.names.empty() && std::count(options.names.begin(), options.names.end(), target.name) == 0;
  });
  bool good = true;
  for (const fuzz::Target& target : targets)
    good = (options.input.empty() ? many_inputs(target, options) : one_input(target, options.input)) && good;
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): only what tells of an error may throw one
  Options options;
  CLI::App app("Reads mutated files and arguments: no reader may crash, hang or take memory without bounds.",
               "nsa-fuzz");
  app.add_option("target", options.names, "which readers; all when none is named");
  app.add_option("--seconds", options.seconds, "how long, for each target")->check(CLI::NonNegativeNumber);
  app.add_option("--seed", options.seed, "of the mutations");
  app.add_option("--source", options.source, "the source tree with fixtures/ and configs/")
      ->check(CLI::ExistingDirectory);
  app.add_option("--save", options.save, "where inputs that fail are written")->check(CLI::ExistingDirectory);
  app.add_option("--input", options.input, "read this file alone, as the named targets would");
  try {
    app.parse(argc, argv);
    return run(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "nsa-fuzz: {}\n", error.what());
    return 2;
  }
}
