// Where a result comes from: everything that must be the same for it to be the same.
//
//  program      {name, version}
//  source       {folder, git_sha, dirty}                  git_* are null without git or without the source tree
//  build        {build_id, source_hash, compiler, type}   source_hash: of the sources as they are now;
//                                                         null when they are gone. Equal to build_id unless
//                                                         the binary is stale
//  host         {hostname, kernel, cpu, cores, memory_bytes, container}
//  environment  {NAME: value} of the variables of other people's software that matter
//  settings     {files: [{path, hash}], values: {key: {value, origin}}}
//  selection    {suites, level, cases, exclude, partial, guards_left_out, fail_fast}
//  ... and what the program adds: Program::provenance and DeviceProbe::provenance.
#pragma once

#include <span>

#include "harness/command_line.hpp"
#include "harness/plan.hpp"

namespace harness {

[[nodiscard]] Json provenance(const Program& program, const Settings& settings, const CommandLine& line);

// The names that "environment" is about; a variable that is not among them is not recorded, set or not.
[[nodiscard]] std::span<const char* const> recorded_variables();

// FNV-1a 64 of a file's content, "" when it cannot be read.
[[nodiscard]] std::string file_hash(const std::filesystem::path& file);

}  // namespace harness
