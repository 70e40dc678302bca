// Files and folders that may be anything: read within bounds, written to only where they are the caller's own, and
// whether an open one is still where it was opened.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace base {

// The first `most` bytes of a regular file, all of it where it is shorter. Throws std::system_error with the system's
// reason and the path; what is no regular file (a folder, a device, a pipe) is std::errc::not_supported.
[[nodiscard]] std::string read_head(const std::filesystem::path& file, std::size_t most);

// What has become of the file `file`, which was opened as `fd`: "" while the name leads to that very file; else
// "deleted or moved away", "replaced", or the system's reason. What is written to `fd` then is lost to all who look for
// it there, and no write tells.
[[nodiscard]] std::string taken_away(int fd, const std::filesystem::path& file);

// Opens a regular file with open(2)'s `flags`, made with mode 0644 under O_CREAT. Neither the file nor the folder that
// it stands in may be a link, which would lead to what is somebody else's. -1 with errno; ELOOP: there is such a link.
[[nodiscard]] int open_own(const std::filesystem::path& file, int flags);

}  // namespace base
