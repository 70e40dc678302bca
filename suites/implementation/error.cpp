#include "suites/implementation/error.hpp"

#include <fmt/format.h>

#include "base/utf8.hpp"

namespace suites::implementation {

namespace {

constexpr std::size_t kShownOutput = 2000;  // bytes of it in what()

// The whole lines at its end; the last of them cut where it alone is too long.
std::string_view last_lines(std::string_view text) {
  if (text.size() <= kShownOutput) return text;
  text.remove_prefix(text.size() - kShownOutput);
  const std::size_t line = text.find('\n');
  if (line + 1 < text.size()) text.remove_prefix(line + 1);
  return text;
}

std::string words(const std::string& kind, const std::string& message, const std::string& traceback,
                  const std::string& output) {
  std::string text = fmt::format("{}: {}", kind, message);
  if (!traceback.empty()) text += "\n" + traceback;
  if (!output.empty()) text += "\nit wrote last:\n" + readable(last_lines(output));
  return text;
}

}  // namespace

ImplementationError::ImplementationError(std::string what_kind, std::string what_message, std::string its_traceback,
                                         std::string its_output)
    : std::runtime_error(words(what_kind, what_message, its_traceback, its_output)),
      kind(std::move(what_kind)),
      message(std::move(what_message)),
      traceback(std::move(its_traceback)),
      output(std::move(its_output)) {}

bool ImplementationError::process_is_gone() const {
  return kind == "start" || kind == "crashed" || kind == "silent" || kind == "protocol";
}

std::string readable(std::string_view bytes, std::size_t most) {
  const bool cut = bytes.size() > most;
  if (cut) bytes = bytes.substr(0, most);
  std::string text;
  while (!bytes.empty()) {
    const std::size_t good = base::first_not_utf8(bytes);
    text += bytes.substr(0, good);
    bytes.remove_prefix(good);
    if (bytes.empty()) break;
    text += "\xEF\xBF\xBD";
    bytes.remove_prefix(1);
  }
  return cut ? text + "..." : text;
}

}  // namespace suites::implementation
