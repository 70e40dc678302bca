// YAML that anybody may have written, read within bounds. Every reader of YAML in this project comes through here.
//
// yaml-cpp 0.7 alone is not safe with it: forty bytes make it return empty documents until the memory is full, an
// anchor that holds its own alias makes whoever walks the nodes recurse without end, and nine lines of aliases stand
// for a thousand million nodes. The text is therefore parsed twice: first into events that are counted and not kept,
// then, when all is within bounds, into nodes.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace base {

// More than any configuration needs by a factor of a hundred.
struct YamlLimits {
  std::size_t bytes = std::size_t{1} << 20;
  std::size_t nodes = 100'000;  // of all documents, an alias counted as what it stands for
  std::size_t depth = 64;       // of maps and lists within one another
};

// The documents of a text. Throws YAML::ParserException, with the place of what is wrong, for what is not YAML or not
// UTF-8, what is beyond a limit, an alias within its own anchor and a document that begins where the last one began.
[[nodiscard]] std::vector<YAML::Node> load_yaml(const std::string& text, const YamlLimits& limits = {});

// The same of a file; throws also as read_head() does.
[[nodiscard]] std::vector<YAML::Node> load_yaml_file(const std::filesystem::path& file, const YamlLimits& limits = {});

}  // namespace base
