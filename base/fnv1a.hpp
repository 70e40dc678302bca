// FNV-1a in 64 bits: seeds and checksums of text. Not cryptographic, and weak in its high bits.
#pragma once

#include <cstdint>
#include <string_view>

namespace base {

inline constexpr std::uint64_t kFnvOffset = 14695981039346656037ULL;

[[nodiscard]] constexpr std::uint64_t fnv1a(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

}  // namespace base
