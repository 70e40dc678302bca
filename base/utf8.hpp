// Whether bytes are text.
#pragma once

#include <cstddef>
#include <string_view>

namespace base {

// Where the first byte stands that is not UTF-8 (RFC 3629: no surrogates, nothing overlong, nothing above U+10FFFF);
// text.size() when all is.
[[nodiscard]] std::size_t first_not_utf8(std::string_view text);

}  // namespace base
