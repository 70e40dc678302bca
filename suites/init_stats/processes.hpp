// Do two processes make the same model from the same seed? The program starts itself twice with a verb of its own,
// which makes the model and prints a hash of every parameter.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nsa/config.hpp"

namespace suites::init_checks {

struct ModelInProcess {
  std::filesystem::path model;  // configuration file
  nsa::Precision precision = nsa::Precision::fp32;
  std::uint64_t seed = 0;
  int threads = 1;                      // of torch, in that process
  std::vector<nsa::Override> set = {};  // keys that stand above the file
};

// What to run as; parameters_verb() understands it.
[[nodiscard]] std::vector<std::string> command_of(const std::filesystem::path& executable, const ModelInProcess& made);

// main() asks this first: the exit code when the arguments ask for hashes ("name hash" a line on standard output),
// nothing when they ask for something else.
[[nodiscard]] std::optional<int> parameters_verb(int argc, char** argv);

// Parameter -> hash, from the output of the verb. Throws std::runtime_error for anything else.
[[nodiscard]] std::map<std::string, std::string> parse_hashes(const std::string& output);

}  // namespace suites::init_checks
