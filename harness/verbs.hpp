// The verbs beside `run`: list, describe, explain, schema, version, report, compare, merge, replay, doctor.
#pragma once

#include <string>

#include "harness/command_line.hpp"
#include "reports/model.hpp"
#include "reports/status.hpp"

namespace harness {

[[nodiscard]] reports::ExitCode list(const Program& program, const CommandLine& line);
[[nodiscard]] reports::ExitCode describe(const Program& program, const CommandLine& line);
[[nodiscard]] reports::ExitCode explain(const Program& program, const CommandLine& line);
[[nodiscard]] reports::ExitCode report(const Program& program, const CommandLine& line);
// Judges nothing: `ready` says that the comparison was made, whatever it found.
[[nodiscard]] reports::ExitCode compare(const Program& program, const CommandLine& line);  // compare_verb.cpp
// "" or how this run is another program's: its cases are others.
[[nodiscard]] std::string other_program(const Program& program, const reports::Run& run);  // compare_verb.cpp
// The fleet's exit code: `ready` only when all of its hosts are.
[[nodiscard]] reports::ExitCode merge(const Program& program, const CommandLine& line);  // merge_verb.cpp
// failed: the same failure; inconclusive: another one, or no telling; ready: it does not fail here; infrastructure: it
// cannot run here (no GPU), or gave no result.
[[nodiscard]] reports::ExitCode replay(const Program& program, const CommandLine& line);  // replay_verb.cpp
[[nodiscard]] reports::ExitCode print_schema(const CommandLine& line);
[[nodiscard]] reports::ExitCode print_version(const Program& program);
[[nodiscard]] reports::ExitCode doctor(const Program& program, const CommandLine& line);  // doctor.cpp

}  // namespace harness
