#include "nsa/train/jsonl.hpp"

#include <fmt/format.h>

#include <string_view>

#include "base/random.hpp"

namespace nsa::train {

namespace {

// What the parser says, fit for a log: it quotes the line, which may be long and anything but text.
std::string printable(std::string_view message) {
  constexpr std::size_t kMost = 200;
  std::string shown;
  for (const char c : message.substr(0, kMost))
    shown += c >= ' ' && c <= '~' ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return message.size() > kMost ? shown + " ..." : shown;
}

}  // namespace

bool is_validation(std::int64_t index, double share) {
  const std::uint64_t hash = base::mixed(static_cast<std::uint64_t>(index) + base::kRandomStep);
  return static_cast<double>(hash >> 11) * 0x1p-53 < share;
}

JsonlReader::JsonlReader(const StreamOptions& options)
    : options_(options), file_(options.data), lines_(file_, options.max_line_bytes) {}

std::string JsonlReader::text_of(const Line& line) const {
  if (line.length > options_.max_line_bytes)
    throw std::runtime_error(fmt::format("{} bytes long; allowed: {}", line.length, options_.max_line_bytes));
  nlohmann::json parsed;
  try {
    parsed = nlohmann::json::parse(line.text);
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(printable(error.what()));
  }
  if (!parsed.is_object()) throw std::runtime_error(fmt::format("is {}, not an object", parsed.type_name()));
  const auto text = parsed.find("text");
  if (text == parsed.end()) throw std::runtime_error("has no \"text\"");
  if (!text->is_string()) throw std::runtime_error(fmt::format("\"text\" is {}, not a string", text->type_name()));
  return text->get<std::string>();
}

bool JsonlReader::next() {
  Place here = next_;
  lines_.seek(here.byte);
  while (const auto line = lines_.next()) {
    Place after{.byte = lines_.at(), .line = here.line + 1, .skipped = here.skipped};
    if (is_validation(here.line, options_.validation_share) == (options_.split == Split::validation)) {
      try {
        text_ = text_of(*line);
        place_ = here;
        next_ = after;
        return true;
      } catch (const std::runtime_error& error) {
        if (!options_.skip_bad_lines)
          throw std::runtime_error(fmt::format("{}:{}: {}", file_.path().string(), here.line + 1, error.what()));
        ++after.skipped;
      }
    }
    here = after;
  }
  text_.clear();
  place_ = next_ = here;
  return false;
}

void JsonlReader::seek(const Place& place) {
  place_ = next_ = place;
  text_.clear();
}

}  // namespace nsa::train
