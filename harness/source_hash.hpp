// The build id: a hash of the sources that a binary is made from. The build compiles it in, and a run computes it again
// from the source folder, so that a stale binary is noticed. One algorithm for both: this one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace harness {

// The files that count, relative to `source_dir`, sorted: its CMakeLists.txt, and every *.cpp *.hpp *.cu *.cuh *.h
// *.cmake and CMakeLists.txt under each of its folders that has a CMakeLists.txt, but not in folders named "tests"
// (tests are not in the binary).
[[nodiscard]] std::vector<std::filesystem::path> hashed_sources(const std::filesystem::path& source_dir);

// FNV-1a 64 over each file's relative path, a zero byte, its content and another zero byte, in that order; 16 hex
// digits. Empty when `source_dir` holds none of them (an installed binary far from its sources). Throws
// std::runtime_error naming a file that cannot be read.
[[nodiscard]] std::string source_hash(const std::filesystem::path& source_dir);

}  // namespace harness
