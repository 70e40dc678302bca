#include "harness/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/environment.hpp"
#include "base/streams.hpp"
#include "base/text.hpp"

namespace harness {

namespace {

constexpr std::size_t kMaxMessage = 160;

const char* color_of(reports::Severity severity) {
  switch (severity) {
    case reports::Severity::info:
      return "";
    case reports::Severity::warn:
    case reports::Severity::degrade:
      return "\033[33m";
    case reports::Severity::block:
    case reports::Severity::isolate:
      return "\033[31m";
  }
  return "";
}

std::string shown_line(const std::string& text) {
  const std::string line = base::first_line(text);
  return line.size() > kMaxMessage ? line.substr(0, kMaxMessage) + "..." : line;
}

}  // namespace

bool want_color(const std::string& color, int fd) {
  if (color != "auto") return color == "always";
  return isatty(fd) == 1 && base::variable("NO_COLOR").value_or("").empty();
}

void Progress::case_begin(const std::string& id) {
  case_ = id;
  phase_.clear();
  case_begin_ = std::chrono::steady_clock::now();
  draw();
}

void Progress::phase(const std::string& name) {
  phase_ = name;
  draw();
}

void Progress::retry(const std::string& reason) {
  phase_.clear();
  if (options_.quiet) return;
  line_.clear();
  base::err("  once more  {}: {}\n", case_, shown_line(reason));
}

void Progress::case_end(reports::Status status) {
  ++done_;
  suite_.add(status);
  case_.clear();
}

void Progress::suite_end(const std::string& suite) {
  line_.clear();
  if (!options_.quiet) {
    const bool whole = suite_.passed + suite_.skipped == suite_.planned;
    const char* mark = suite_.failed > 0 ? "FAILED" : !whole ? "open" : suite_.passed > 0 ? "ok" : "skipped";
    base::err("{:14} {:8} {}\n", suite, mark, reports::counts(suite_));
  }
  suite_ = {};
}

void Progress::finding(const Note& note) {
  if (options_.quiet || note.severity < reports::Severity::warn) return;
  line_.clear();
  const char* color = options_.color ? color_of(note.severity) : "";
  base::err("  {}{} {}{}  {}{}{}\n", color, note.code, reports::to_string(note.severity),
            options_.color ? "\033[0m" : "", note.where, note.where.empty() ? "" : ": ", shown_line(note.message));
}

void Progress::tick() { draw(); }

void Progress::draw() {
  if (!options_.live || options_.quiet || case_.empty() || line_.is_fresh()) return;
  std::string line = fmt::format("[{}/{}] {:.0f}s  {}", done_ + 1, options_.cases, base::seconds_since(begin_), case_);
  if (!phase_.empty()) line += "  " + phase_;
  if (const double elapsed = base::seconds_since(case_begin_); elapsed >= 2)
    line += fmt::format("  ({:.0f}s)", elapsed);
  line_.draw(line);
}

}  // namespace harness
