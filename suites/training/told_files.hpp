// The files of a training run as anybody would read them, with none of the readers of nsa/train. Every function throws
// Unreadable for a file that is missing, empty, or not what its name says.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace suites::training_cases {

using ToldJson = nlohmann::json;  // as nsa/train has it: the order of keys says nothing

class Unreadable : public std::runtime_error {  // path, line, reason
 public:
  using std::runtime_error::runtime_error;
};

// A row of metrics.csv or validation.csv. An empty field is nullopt; NaN and infinities are refused.
struct ToldRow {
  std::int64_t line = 0, step = 0;
  std::map<std::string, std::optional<double>> fields;
};
[[nodiscard]] std::vector<ToldRow> told_table(const std::filesystem::path& file);

struct ToldEvent {
  std::int64_t line = 0;
  ToldJson record;  // an object
};
[[nodiscard]] std::vector<ToldEvent> told_events(const std::filesystem::path& file);

[[nodiscard]] ToldJson told_json(const std::filesystem::path& file);  // an object

// A safetensors file of a TrainState.
struct ToldCheckpoint {
  ToldJson facts;
  std::map<std::string, at::Tensor> tensors;
};
[[nodiscard]] ToldCheckpoint told_checkpoint(const std::filesystem::path& file);

// dtypes.txt
struct ToldTypes {
  std::map<std::string, std::int64_t> elements;  // by dtype, as the summary counts them
  std::int64_t all = 0;
  std::map<std::string, std::string> parameters;  // name -> "[64,256] Float optimizer Float"
};
[[nodiscard]] ToldTypes told_types(const std::filesystem::path& file);

// "final: step=N loss=X weights=HASH", the last line of what the program wrote on standard output.
struct ToldEnd {
  std::string word, weights;  // "final" or "stopped"
  std::int64_t step = 0;
  double loss = 0;
};
[[nodiscard]] ToldEnd told_end(const std::string& output);

}  // namespace suites::training_cases
