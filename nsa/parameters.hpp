// Weights by name: from a file, and into a model. The names are those of nsa/README.md ("What is computed").
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/model/lm.hpp"

namespace nsa {

// Where the parameters of a model lie in a checkpoint of nsa-train: "model/embedding.weight".
inline constexpr std::string_view kCheckpointParameters = "model/";

// The tensors of a safetensors file by name, on the CPU, with the dtypes that they have there. Only those whose names
// begin with `prefix`, named without it. A checkpoint of nsa-train is one too; its checksum is held against its content
// and not among the tensors.
//
// Throws train::TensorFileInvalid (path and reason) for what is no such file, is torn, or has no name that begins with
// `prefix`; train::CheckpointInvalid for a checkpoint that is not as it was written; train::FileError for a file that
// cannot be opened.
[[nodiscard]] std::map<std::string, at::Tensor> load_tensors(const std::filesystem::path& file,
                                                             std::string_view prefix = "");

// Tensors that are not the parameters of this model: what() names every one that differs, as `differences` does
// one by one.
class ParametersMismatch : public std::invalid_argument {
 public:
  explicit ParametersMismatch(std::vector<std::string> differences);
  std::vector<std::string> differences;
};

// Copies the tensors into the parameters of the same names, wherever these lie, and rounds to their dtype. Throws
// ParametersMismatch, and changes nothing, unless there is exactly one tensor for each parameter, of its shape and of
// floating point. Throws std::invalid_argument for a model that holds nothing.
void load_parameters(const LanguageModel& model, const std::map<std::string, at::Tensor>& tensors);

}  // namespace nsa
