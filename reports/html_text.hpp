// Text inside HTML and SVG.
#pragma once

#include <string>

namespace reports {

// `text` as the content of an element or attribute: markup characters escaped, control characters dropped.
[[nodiscard]] std::string esc(const std::string& text);

}  // namespace reports
