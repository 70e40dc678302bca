// Reading a file that may be anything, within bounds.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace base {

// The first `most` bytes of a regular file, all of it where it is shorter. Throws std::system_error with the system's
// reason and the path; what is no regular file (a folder, a device, a pipe) is std::errc::not_supported.
[[nodiscard]] std::string read_head(const std::filesystem::path& file, std::size_t most);

}  // namespace base
