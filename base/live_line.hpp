// The one line at the end of a terminal that a program draws over while it works, on standard error. Whatever else is
// written there goes after clear().
#pragma once

#include <chrono>
#include <string_view>

namespace base {

// Standard error is a terminal that takes escapes, and no CI's log (CI, TERM).
[[nodiscard]] bool want_live_line();

class LiveLine {
 public:
  LiveLine() = default;
  ~LiveLine() { clear(); }
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  // A moment ago it was drawn: drawing again would only flicker.
  [[nodiscard]] bool is_fresh() const;
  void draw(std::string_view text);  // cut to the terminal's width
  void clear();

 private:
  bool shown_ = false;
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace base
