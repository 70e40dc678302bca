#include "nsa/cuda/architectures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace nsa {

namespace {

constexpr int kLeastMajor = 8;  // no kernel is written for less: mma.sync with bf16, asynchronous copies

struct Architecture {
  int major = 0, minor = 0;
  bool exact = false;  // "9.0a"
  bool ptx = false;
};

// The first of "8.0;8.6 9.0a+PTX" that `wanted` says yes to, else one of 0.0; a word that is none is left out. Every
// call of every operator asks: nothing is allocated.
template <typename Wanted>
Architecture first_of(std::string_view list, const Wanted& wanted) {
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
    if (wanted(a)) return a;
  }
  return {};
}

bool runs(const Architecture& a, int major, int minor) {
  if (a.exact) return a.major == major && a.minor == minor;
  if (a.major == major && a.minor <= minor) return true;
  return a.ptx && (major > a.major || (major == a.major && minor >= a.minor));
}

}  // namespace

std::string_view compiled_architectures() { return NSA_CUDA_ARCHITECTURES; }

std::pair<int, int> first_architecture(std::string_view list) {
  const Architecture first = first_of(list, [](const Architecture& a) { return a.major >= kLeastMajor; });
  return {first.major, first.minor};
}

std::string architecture_refusal(std::string_view list, int major, int minor) {
  const auto serves = [&](const Architecture& a) { return runs(a, major, minor); };
  if (major >= kLeastMajor && first_of(list, serves).major > 0) return "";
  return fmt::format("compute capability {}.{}; served: what this build was compiled for, {} (TORCH_CUDA_ARCH_LIST)",
                     major, minor, list);
}

}  // namespace nsa
