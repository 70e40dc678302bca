#include "suites/training/stream_mistakes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

namespace suites::training_cases {

namespace {

using nsa::train::Order;

// End to end: a row begins with the last token of the one before it.
std::string tokens_of(const Rows& rows) {
  std::string tokens = bytes_of(rows.front());
  for (std::size_t i = 1; i < rows.size(); ++i) tokens += bytes_of(rows[i]).substr(1);
  return tokens;
}
std::string without_newlines(std::string text) {
  std::erase(text, '\n');
  return text;
}

// What was read goes on some tokens further, or earlier, than it should: from one place on.
std::string mistake_in_tokens(const std::string& read, const std::string& due) {
  constexpr std::size_t kMostTokens = 64, kSame = 40;
  const auto parting = std::mismatch(read.begin(), read.end(), due.begin(), due.end());
  const auto at = static_cast<std::size_t>(parting.first - read.begin());
  const auto goes_on = [&](const std::string& here, const std::string& there, std::size_t shift) {
    return at + kSame <= here.size() && at + shift + kSame <= there.size() &&
           here.compare(at, kSame, there, at + shift, kSame) == 0;
  };
  for (std::size_t shift = 1; shift <= kMostTokens; ++shift) {
    if (goes_on(read, due, shift)) return fmt::format("{} token(s) were lost at token {} of the data", shift, at);
    if (goes_on(due, read, shift))
      return fmt::format("{} token(s) that are not there stood at token {} of the data", shift, at);
  }
  return "";
}

}  // namespace

Rows rows_of(const Batches& batches) {
  Rows rows;
  for (const PlainBatch& batch : batches) rows.insert(rows.end(), batch.rows.begin(), batch.rows.end());
  return rows;
}

std::string mistake_in_pass(const nsa::train::StreamOptions& options, const PlainData& data, const Batches& wanted,
                            const Batches& read) {
  if (wanted == read || read.empty()) return "";
  const Rows due = rows_of(wanted), rows = rows_of(read);
  for (const auto& row : rows)
    if (std::any_of(row.begin(), row.end(), [](std::int64_t token) { return token < 0; }))
      return "the bytes from 128 on were signed: they become negative tokens";
  for (const auto& row : rows)
    if (data.holds_validation(row)) return "what is held out for validation were trained on";
  const std::set<Row> once(rows.begin(), rows.end());
  if (options.order == Order::shuffled && once.size() < rows.size() && rows.size() == due.size())
    return fmt::format("rows were drawn anew each time: of {} rows {} came in a pass, some of them again", due.size(),
                       once.size());
  if (rows.size() < due.size() && options.order == Order::sequential &&
      std::equal(rows.begin(), rows.end(), due.begin()))
    return fmt::format("the last {} of {} rows of the data were left out", due.size() - rows.size(), due.size());
  if (options.order != Order::sequential || rows.size() < 2) return "";
  const std::string tokens = tokens_of(rows), all = tokens_of(due);
  if (tokens.size() < all.size() && all.starts_with(tokens))
    return fmt::format("the last {} of {} tokens of the data were left out", all.size() - tokens.size(), all.size());
  if (all.find('\n') == std::string::npos && tokens.find('\n') != std::string::npos)
    return "a newline were added to every document";
  if (without_newlines(tokens) == without_newlines(all) && tokens.size() < all.size())
    return "the newlines that end documents were left out";
  const auto first = data.training.tokens.find(bytes_of(rows[0])),
             second = data.training.tokens.find(bytes_of(rows[1]));
  const bool found = first != std::string::npos && second != std::string::npos && second > first;
  if (found && static_cast<std::int64_t>(second - first) != options.seq_len)
    return fmt::format(
        "a row began {} tokens after the one before it, not S = {}: what lies between is never predicted, or twice",
        second - first, options.seq_len);
  return mistake_in_tokens(tokens, all);
}

}  // namespace suites::training_cases
