#include "reports/journal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "reports/journal_rules.hpp"
#include "reports/records.hpp"

namespace reports {

namespace {

// What one line of the file is.
struct Line {
  Json event;         // when it could be parsed
  bool torn = false;  // cut off inside the object: the writer died in the middle of it
};

// Throws std::invalid_argument for anything that is neither an event nor the beginning of one.
Line parse_line(const std::string& text, bool ended) {
  if (records::nests_deeper(std::string_view(text), kMostDepth))
    throw std::invalid_argument(fmt::format("not an event: brackets nest deeper than {}", kMostDepth));
  try {
    return {Json::parse(text), false};
  } catch (const Json::parse_error& error) {
    // Every event begins with a brace. Without its newline it was being written; with one it was cut when the parser
    // fails only because the text is over.
    const bool begins_event = !text.empty() && text.front() == '{';
    if (begins_event && (!ended || error.byte > text.size())) return {{}, true};
    throw std::invalid_argument(fmt::format("not an event: invalid JSON at byte {}", error.byte));
  } catch (const Json::exception& error) {  // a number too large for any type
    throw std::invalid_argument(fmt::format("not an event: {}", error.what()));
  }
}

// The next line without its newline, as std::getline, but within bounds: a journal may be anything.
bool next_line(std::istream& in, std::string& line, std::uint64_t& bytes) {
  std::array<char, 1 << 14> part;
  line.clear();
  while (true) {
    in.getline(part.data(), part.size());
    const auto n = static_cast<std::size_t>(in.gcount());
    bytes += n;
    if (bytes > kMostJournalBytes)
      throw std::invalid_argument(fmt::format("the journal is longer than {} MiB", kMostJournalBytes >> 20));
    const bool goes_on = in.fail() && !in.eof() && !in.bad() && n > 0;  // the part is full, and no newline is in it
    const bool has_newline = !in.fail() && !in.eof();                   // it is counted, and not in the part
    line.append(part.data(), has_newline ? n - 1 : n);
    if (line.size() > kMostLineBytes)
      throw std::invalid_argument(fmt::format("not an event: longer than {} MiB", kMostLineBytes >> 20));
    if (!goes_on) return has_newline || !line.empty();
    in.clear();
  }
}

// Whether a summary can do without this line. Only as our writer puts it: kind, time and number first; any other line
// is parsed. It must be one object, with its number in the sequence.
bool is_left_out(std::string_view line, std::uint64_t number, WantedFact wanted) {
  constexpr std::string_view kEvent = R"({"event":")", kTime = R"(","t":")", kNumber = R"(","seq":)",
                             kKey = R"(,"key":")";
  const auto take = [&line](std::string_view word) {
    if (!line.starts_with(word)) return false;
    line.remove_prefix(word.size());
    return true;
  };
  const std::string_view whole = line;
  if (!take(kEvent)) return false;
  const std::string_view kind = line.substr(0, line.find('"'));
  line.remove_prefix(kind.size());
  if (!take(kTime)) return false;
  line.remove_prefix(std::min(line.find('"'), line.size()));
  if (!take(kNumber) || !take(std::to_string(number)) || !line.starts_with(',')) return false;
  // None of these marks can stand inside a text, where a quote is escaped; the first one is the event's own.
  if (kind == "check" && line.find(R"(,"pass":true,)") == std::string_view::npos) return false;
  if (kind == "fact") {
    const std::size_t at = line.find(kKey);
    if (at == std::string_view::npos) return false;
    const std::string_view key = line.substr(at + kKey.size());
    if (wanted(key.substr(0, key.find('"')))) return false;
  }
  return (kind == "check" || kind == "fact" || kind == "phase" || kind == "artifact") && records::is_one_object(whole);
}

void check_order(const Json& event, std::uint64_t expected) {
  if (!event.is_object()) throw std::invalid_argument("not an event: not a JSON object");
  const auto seq = event.find("seq");
  if (seq == event.end() || !seq->is_number_unsigned()) {
    throw std::invalid_argument("not an event: no field 'seq' with a number >= 0");
  }
  if (seq->get<std::uint64_t>() != expected) {
    throw std::invalid_argument(fmt::format("seq is {}, expected {}: lines are missing, repeated or out of order",
                                            seq->get<std::uint64_t>(), expected));
  }
}

}  // namespace

Run read_journal(const std::filesystem::path& file, WantedFact summary) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored))
    throw JournalError(file.string() + ": is a folder, not a journal", false);
  // A pipe would be waited for, a device read for ever.
  if (std::filesystem::exists(file, ignored) && !std::filesystem::is_regular_file(file, ignored))
    throw JournalError(file.string() + ": is no regular file, and no journal", false);
  std::ifstream in(file, std::ios::binary);
  if (!in) throw JournalError(fmt::format("{}: cannot be opened: {}", file.string(), std::strerror(errno)), false);
  return read_journal(in, file.string(), summary);
}

Run read_journal(std::istream& in, const std::string& name, WantedFact summary) {
  RunBuilder builder;
  bool torn = false;
  std::string text;
  std::uint64_t number = 0;  // events read: the sequence number expected next, and the line before it
  std::uint64_t bytes = 0;
  while (true) {
    const std::string where = fmt::format("{}:{}", name, number + 1);
    try {
      if (!next_line(in, text, bytes)) break;
    } catch (const std::invalid_argument& error) {
      throw JournalError(fmt::format("{}: {}", where, error.what()), false);
    }
    if (torn) throw JournalError(fmt::format("{}: not an event: cut off, and yet not the last line", where), false);
    const bool ended = !in.eof();
    if (summary != nullptr && number > 0 && ended && is_left_out(text, number, summary)) {
      ++number;
      continue;
    }
    try {
      const Line line = parse_line(text, ended);
      torn = line.torn || !ended;
      if (line.torn) continue;
      check_order(line.event, number);
      if (number == 0 && line.event.value("event", Json()) == "run_begin")
        records::check_schema(line.event, kEventSchema, kEventSchemaVersion, where + ": run_begin", "journal");
      builder.apply(line.event);
      ++number;
    } catch (const std::invalid_argument& error) {
      throw JournalError(fmt::format("{}: {}", where, error.what()), false);
    }
  }
  if (in.bad()) throw JournalError(fmt::format("{}: cannot be read: {}", name, std::strerror(errno)), false);
  try {
    return builder.finish(torn);
  } catch (const std::invalid_argument& error) {
    throw JournalError(fmt::format("{}: {}", name, error.what()), false);
  }
}

}  // namespace reports
