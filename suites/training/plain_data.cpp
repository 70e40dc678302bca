#include "suites/training/plain_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "base/random.hpp"

namespace suites::training_cases {

namespace {

std::string whole_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (text.empty()) throw std::runtime_error(path.string() + " is missing or empty");
  return text;
}

// Is this line kept out of training? The first number of splitmix64 with the line's number as its seed, as a share
// of 1.
bool held_out(std::uint64_t line, double share) {
  return static_cast<double>(base::next_random(line) >> 11) / 9007199254740992.0 < share;  // 53 bits
}

void read_text(const std::string& text, double share, PlainData& data) {
  const auto kept = text.size() - static_cast<std::size_t>(std::llround(share * static_cast<double>(text.size())));
  data.training.tokens = text.substr(0, kept);
  data.validation.tokens = text.substr(kept);
  // A paragraph begins at the first byte that is no space after two ends of lines or more.
  int newlines = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') ++newlines;
    if (std::string_view(" \t\r\n").find(text[i]) != std::string_view::npos) continue;
    if (newlines >= 2) (i < kept ? data.training : data.validation).begins.push_back(i < kept ? i : i - kept);
    newlines = 0;
  }
}

void read_jsonl(const std::string& text, const nsa::TrainConfig& config, PlainData& data) {
  std::istringstream lines(text);
  std::string line;
  for (std::uint64_t number = 0; std::getline(lines, line); ++number) {
    PlainSplit& split = held_out(number, config.validation_share) ? data.validation : data.training;
    const auto parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object() || !parsed.contains("text") || !parsed["text"].is_string()) {
      if (config.skip_bad_lines) continue;
      throw std::runtime_error(config.data + ": a line without \"text\"");
    }
    const std::string document = parsed["text"].get<std::string>() + (config.packed ? "" : "\n");
    if (!document.empty()) split.begins.push_back(split.tokens.size());
    split.tokens += document;
  }
}

}  // namespace

std::string bytes_of(const std::vector<std::int64_t>& row) {
  std::string bytes;
  for (const std::int64_t token : row) bytes += static_cast<char>(token);
  return bytes;
}

std::string shown(const std::vector<std::int64_t>& row, const PlainSplit& split) {
  constexpr std::size_t kShown = 24;
  const std::string bytes = bytes_of(row);
  std::string text;
  for (const char c : bytes.substr(0, kShown))
    text += c >= ' ' && c <= '~' ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  const auto at = split.tokens.find(bytes);
  return fmt::format("'{}...', {} tokens {}", text, row.size(),
                     at == std::string::npos ? "that stand nowhere in this split" : fmt::format("from token {}", at));
}

const PlainBatch* with_rows_of(const PlainBatch& batch, const std::vector<PlainBatch>& among) {
  const auto found = std::find_if(among.begin(), among.end(), [&](const auto& one) { return one.rows == batch.rows; });
  return found == among.end() ? nullptr : &*found;
}

std::vector<PlainBatch> PlainSplit::batches(const nsa::TrainConfig& config) const {
  std::vector<PlainBatch> all;
  const auto S = static_cast<std::size_t>(config.seq_len), B = static_cast<std::size_t>(config.batch_size);
  for (std::size_t start = 0; start + 1 < tokens.size(); start += S) {
    const std::size_t length = std::min(S + 1, tokens.size() - start);
    std::vector<std::int64_t> row;
    for (std::size_t i = 0; i < length; ++i) row.push_back(static_cast<unsigned char>(tokens[start + i]));
    if (!config.packed) {
      const bool joins = !all.empty() && all.back().rows.size() < B && all.back().rows.back().size() == length;
      if (!joins) all.emplace_back();
      all.back().rows.push_back(std::move(row));
      continue;
    }
    std::vector<std::int64_t> borders{0};
    for (const std::size_t begin : begins)
      if (begin > start && begin < start + length) borders.push_back(static_cast<std::int64_t>(begin - start));
    borders.push_back(static_cast<std::int64_t>(length));
    const bool predicts = borders.size() <= length;  // else every token begins a document
    if (predicts) all.push_back({{std::move(row)}, std::move(borders)});
  }
  return all;
}

bool PlainData::holds_validation(const std::vector<std::int64_t>& row) const {
  constexpr std::size_t kTelling = 16;
  const std::string bytes = bytes_of(row);
  if (training.tokens.find(bytes) != std::string::npos) return false;
  if ((validation.tokens.find(bytes) != std::string::npos) ||
      (training.tokens + validation.tokens).find(bytes) != std::string::npos)
    return true;
  for (std::size_t i = 0; i < validation.begins.size(); ++i) {
    const std::size_t begin = validation.begins[i],
                      end = i + 1 < validation.begins.size() ? validation.begins[i + 1] : validation.tokens.size();
    const std::string document = validation.tokens.substr(begin, std::min(end - begin, kTelling));
    if (document.size() == kTelling && bytes.find(document) != std::string::npos &&
        training.tokens.find(document) == std::string::npos)
      return true;
  }
  return false;
}

PlainData::PlainData(const nsa::TrainConfig& config) {
  const bool lines = std::filesystem::path(config.data).extension() == ".jsonl";
  const std::string text = whole_file(config.data);
  if (lines)
    read_jsonl(text, config, *this);
  else
    read_text(text, config.validation_share, *this);
}

}  // namespace suites::training_cases
