// The bundles of a run's failing cases (reports/bundle.hpp): made from its journal, sealed, written beside its reports,
// and read again.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "harness/program.hpp"
#include "reports/bundle.hpp"

namespace harness {

// FNV-1a 64 of everything in the bundle but its seal.
[[nodiscard]] std::string seal_of(const Json& bundle);
// The text of the file, with the seal in it.
[[nodiscard]] std::string sealed(Json bundle);

// Writes a bundle for each of the first kMostBundles failing cases into `folder`, which holds the run's journal, and
// enters them into Run::bundles. `lose` is told what could not be written, a sentence each. More cases than that are
// told on standard error.
void write_bundles(reports::Run& run, const std::filesystem::path& folder, std::set<std::filesystem::path>& own,
                   const std::function<void(const std::string&)>& lose);

// A bundle from a file; its seal and its names are looked at: program, case, settings, faults and variables must be
// known here. Throws reports::JournalError (`incompatible`: another schema major).
[[nodiscard]] reports::Bundle read_bundle(const std::filesystem::path& file, const Program& program);

// Variables that a bundle may set: those that the harness records, and the program's own (Program::variables).
[[nodiscard]] bool may_be_set(const Program& program, const std::string& variable);

}  // namespace harness
