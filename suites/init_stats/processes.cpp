#include "suites/init_stats/processes.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <iostream>
#include <sstream>
#include <stdexcept>

#include "harness/process.hpp"
#include "suites/codes.hpp"
#include "suites/init_stats/checks.hpp"
#include "suites/subject.hpp"

namespace suites::init_checks {

namespace {

constexpr std::string_view kVerb = "__parameters";
constexpr double kLimitSeconds = 100;  // of one process

nsa::Precision precision_of(const std::string& name) {
  for (const auto precision : {nsa::Precision::fp64, nsa::Precision::fp32, nsa::Precision::bf16})
    if (name == nsa::to_string(precision)) return precision;
  throw std::invalid_argument(fmt::format("precision '{}'; allowed: fp64, fp32, bf16", name));
}

nsa::Override override_of(const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos) throw std::invalid_argument(fmt::format("'{}' is not KEY=VALUE", word));
  return {word.substr(0, equals), word.substr(equals + 1), std::string(kVerb)};
}

// On the CPU, where initial values are drawn whatever device the model then moves to.
void print_hashes(const ModelInProcess& made) {
  at::set_num_threads(made.threads);
  const Subject subject(std::make_shared<Seams>());
  const Instance instance = subject.model({.config = nsa::load_config(made.model, made.set).model,
                                           .flags = subject.flags(),
                                           .precision = made.precision,
                                           .device = at::kCPU,
                                           .seed = made.seed});
  for (const auto& item : instance.model->named_parameters()) {
    const at::Tensor bytes = item.value().detach().contiguous();
    const std::string_view content(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
    std::cout << fmt::format("{} {:016x}\n", item.key(), std::hash<std::string_view>{}(content));
  }
}

std::map<std::string, std::string> hashes_of_process(const std::filesystem::path& executable,
                                                     const ModelInProcess& made) {
  const auto output = harness::output_of(command_of(executable, made), kLimitSeconds);
  if (!output)
    throw std::runtime_error(fmt::format("{} {} with {} thread(s) failed or took longer than {} s", executable.string(),
                                         kVerb, made.threads, kLimitSeconds));
  return parse_hashes(*output);
}

}  // namespace

std::vector<std::string> command_of(const std::filesystem::path& executable, const ModelInProcess& made) {
  std::vector<std::string> words = {executable.string(),       std::string(kVerb),
                                    made.model.string(),       std::string(to_string(made.precision)),
                                    std::to_string(made.seed), std::to_string(made.threads)};
  for (const nsa::Override& set : made.set) words.push_back(set.key + "=" + set.value);
  return words;
}

std::optional<int> parameters_verb(int argc, char** argv) {
  if (argc < 2 || argv[1] != kVerb) return std::nullopt;
  try {
    if (argc < 6) throw std::invalid_argument("needed: MODEL PRECISION SEED THREADS [KEY=VALUE ...]");
    ModelInProcess made{argv[2], precision_of(argv[3]), std::stoull(argv[4]), std::stoi(argv[5])};
    for (int i = 6; i < argc; ++i) made.set.push_back(override_of(argv[i]));
    print_hashes(made);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << kVerb << ": " << error.what() << std::endl;
    return 2;
  }
}

std::map<std::string, std::string> parse_hashes(const std::string& output) {
  std::map<std::string, std::string> hashes;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, hash, more;
    if (!(words >> name >> hash) || (words >> more) || hash.size() != 16)
      throw std::runtime_error(fmt::format("the process that makes a model printed '{}'", line));
    hashes[name] = hash;
  }
  if (hashes.empty()) throw std::runtime_error("the process that makes a model printed nothing");
  return hashes;
}

void processes(Context& context, const ModelOptions& options, const std::filesystem::path& executable) {
  ModelInProcess made{model_file(context.settings()), options.precision, options.seed, 1,
                      model_overrides(context.settings())};
  context.phase("first process");
  const auto first = hashes_of_process(executable, made);
  made.threads = 4;  // another process, and another number of threads in it
  context.phase("second process");
  const auto second = hashes_of_process(executable, made);
  Json differ = Json::array();
  for (const auto& [name, hash] : first) {
    const auto other = second.find(name);
    if (other == second.end() || other->second != hash) differ.push_back(name);
  }
  context.metric("parameters_compared", static_cast<double>(first.size()), "1");
  context.expect_equal("parameters of two processes", second.size(), first.size(), codes::kProcessBits);
  context.expect(
      "two processes make the same bits", differ.empty(),
      fmt::format("{} of {} parameters differ between two processes of seed {}; the first: {}", differ.size(),
                  first.size(), options.seed, differ.empty() ? "" : differ.front().get<std::string>()),
      codes::kProcessBits, {{"parameters", differ}, {"seed", options.seed}});
}

}  // namespace suites::init_checks
