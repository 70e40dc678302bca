// The runs of a fleet, from the folders that they lie in. A folder may hold anything: nothing in it is executed, no
// link in it is followed, and what cannot be read is a host that says so.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "harness/program.hpp"
#include "reports/fleet.hpp"

namespace harness {

struct HostFolder {
  std::filesystem::path path;
  std::string trouble;     // why it is no run; "" for a run
  bool not_begun = false;  // nothing of a run is in it: a host that is missing, and not one that cannot be read
};

// Of each folder given: itself, when it is a run's, else its folders, which are those of the hosts; by name. Left out
// are hidden ones, the report of a merge, and a link to one of them (out/latest). One that is given and is neither is a
// host with a trouble, where the others hold any. Throws UsageError: a folder that is not there or given twice, or when
// there is nothing to merge.
[[nodiscard]] std::vector<HostFolder> host_folders(const std::vector<std::string>& given);

inline constexpr std::uintmax_t kMostBytesOfHost = std::uintmax_t{64} << 20;  // of its journal or report.json

// Reads them, several at once, in their order. Never throws for what is in a folder.
[[nodiscard]] std::vector<reports::FleetHost> read_hosts(const Program& program,
                                                         const std::vector<HostFolder>& folders);

}  // namespace harness
