// What writers and readers of a journal both keep to.
#pragma once

#include <cstddef>
#include <cstdint>

namespace reports {

// What is read at most, and therefore written at most: a file may be anything.
inline constexpr std::size_t kMostLineBytes = std::size_t{16} << 20;
inline constexpr std::uint64_t kMostJournalBytes = std::uint64_t{1} << 30;
inline constexpr std::size_t kMostDepth = 1000;  // of brackets within brackets; whoever walks a value is recursive

// The reason code of a case that calls itself a pass and has more failed checks than findings: it has failed.
inline constexpr const char* kUnexplainedCheck = "unexplained_check";

}  // namespace reports
