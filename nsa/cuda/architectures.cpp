#include "nsa/cuda/architectures.hpp"

#include <fmt/format.h>

#include <charconv>
#include <vector>

namespace nsa {

namespace {

constexpr int kLeastMajor = 8;  // no kernel is written for less: mma.sync with bf16, asynchronous copies

struct Architecture {
  int major = 0, minor = 0;
  bool exact = false;  // "9.0a"
  bool ptx = false;
};

// "8.0;8.6 9.0a+PTX"; a word that is none is left out.
std::vector<Architecture> parse(std::string_view list) {
  std::vector<Architecture> all;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find_first_of("; ,"), list.size());
    const std::string_view word = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    const std::size_t dot = word.find('.');
    if (dot == std::string_view::npos) continue;
    Architecture a;
    const auto [after_major, bad_major] = std::from_chars(word.data(), word.data() + dot, a.major);
    const auto [rest, bad_minor] = std::from_chars(word.data() + dot + 1, word.data() + word.size(), a.minor);
    if (bad_major != std::errc{} || bad_minor != std::errc{} || after_major != word.data() + dot) continue;
    const std::string_view tail(rest, static_cast<std::size_t>(word.data() + word.size() - rest));
    a.exact = tail.starts_with("a");
    a.ptx = tail.ends_with("+PTX");
    all.push_back(a);
  }
  return all;
}

bool runs(const Architecture& a, int major, int minor) {
  if (a.exact) return a.major == major && a.minor == minor;
  if (a.major == major && a.minor <= minor) return true;
  return a.ptx && (major > a.major || (major == a.major && minor >= a.minor));
}

}  // namespace

std::string_view compiled_architectures() { return NSA_CUDA_ARCHITECTURES; }

std::pair<int, int> first_architecture(std::string_view list) {
  for (const Architecture& a : parse(list))
    if (a.major >= kLeastMajor) return {a.major, a.minor};
  return {0, 0};
}

std::string architecture_refusal(std::string_view list, int major, int minor) {
  if (major >= kLeastMajor)
    for (const Architecture& a : parse(list))
      if (runs(a, major, minor)) return "";
  return fmt::format("compute capability {}.{}; served: what this build was compiled for, {} (TORCH_CUDA_ARCH_LIST)",
                     major, minor, list);
}

}  // namespace nsa
