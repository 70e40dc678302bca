#include "suites/training/ngram.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace suites::training_cases {

namespace {

// A number for a sequence that grows backwards by one token at a time. 64 bits: with the some millions of sequences of
// a run, two that share a number are not to be expected (and would change the loss by nothing that matters).
std::uint64_t longer(std::uint64_t key, std::int64_t token) {
  std::uint64_t z = key * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(token) + 1;
  z = (z ^ (z >> 32)) * 0xD6E8FEB86659FD93U;
  return z ^ (z >> 29);
}

std::uint64_t with_token(std::uint64_t context, std::int64_t token) { return longer(~context, token); }

}  // namespace

NgramOracle::NgramOracle(std::int64_t vocab, int order) : vocab_(vocab), order_(order) {
  if (vocab < 1 || order < 0) throw std::invalid_argument("n-gram oracle: vocab at least 1, order at least 0");
}

double NgramOracle::observe(std::span<const std::int64_t> row) {
  if (row.size() < 2) throw std::invalid_argument("n-gram oracle: a row has at least two tokens");
  double nats = 0;
  for (std::size_t i = 1; i < row.size(); ++i) {
    const std::size_t reach = std::min<std::size_t>(i, static_cast<std::size_t>(order_));
    const auto past = row.subspan(i - reach, reach);
    nats -= std::log(probability(past, row[i]));
    count(past, row[i]);
  }
  return nats / static_cast<double>(row.size() - 1);
}

double NgramOracle::probability(std::span<const std::int64_t> past, std::int64_t token) const {
  double p = 1 / static_cast<double>(vocab_);
  std::uint64_t key = 0;
  for (std::size_t length = 0;; ++length) {  // from the shortest context to the longest
    const auto context = contexts_.find(key);
    if (context == contexts_.end()) return p;  // never met: then no longer one was
    const auto hit = counts_.find(with_token(key, token));
    const double times = hit == counts_.end() ? 0 : static_cast<double>(hit->second);
    const auto seen = static_cast<double>(context->second.seen);
    const auto distinct = static_cast<double>(context->second.distinct);
    p = (times + distinct * p) / (seen + distinct);
    if (length == past.size()) return p;
    key = longer(key, past[past.size() - 1 - length]);
  }
}

void NgramOracle::count(std::span<const std::int64_t> past, std::int64_t token) {
  std::uint64_t key = 0;
  for (std::size_t length = 0;; ++length) {
    Context& context = contexts_[key];
    ++context.seen;
    if (++counts_[with_token(key, token)] == 1) ++context.distinct;
    if (length == past.size()) return;
    key = longer(key, past[past.size() - 1 - length]);
  }
}

}  // namespace suites::training_cases
