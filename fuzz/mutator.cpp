#include "fuzz/mutator.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>
#include <string_view>

namespace fuzz {

namespace {

// A number below n; n is at least 1.
std::size_t below(std::size_t n, std::mt19937_64& random) { return static_cast<std::size_t>(random() % n); }

template <typename List>
const auto& one_of(const List& list, std::mt19937_64& random) {
  return list[below(std::size(list), random)];
}

struct Range {
  std::size_t begin, length;
};

Range some_range(const std::string& text, std::mt19937_64& random) {
  const std::size_t begin = below(text.size() + 1, random);
  const std::size_t longest = text.size() - begin;
  // Short ones more often: most mistakes are small.
  return {begin,
          longest == 0 ? 0 : below(std::min<std::size_t>(longest, std::size_t{1} << below(12, random)) + 1, random)};
}

// The line around a random place, its newline included.
Range some_line(const std::string& text, std::mt19937_64& random) {
  const std::size_t at = below(text.size() + 1, random);
  const std::size_t before = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  const std::size_t after = text.find('\n', begin);
  return {begin, (after == std::string::npos ? text.size() : after + 1) - begin};
}

constexpr std::array<std::string_view, 22> kNumbers = {"0",
                                                       "-1",
                                                       "1",
                                                       "7",
                                                       "255",
                                                       "2147483647",
                                                       "2147483648",
                                                       "-2147483649",
                                                       "4294967296",
                                                       "9007199254740993",
                                                       "9223372036854775807",
                                                       "9223372036854775808",
                                                       "18446744073709551615",
                                                       "18446744073709551616",
                                                       "-0.0",
                                                       "1e309",
                                                       "-1e309",
                                                       "1e-400",
                                                       "nan",
                                                       "inf",
                                                       "0x10",
                                                       "99999999999999999999999999999999999999999999999999"};

constexpr std::array<std::string_view, 8> kBytes = {
    std::string_view("\0", 1), "\xff", "\xc3\x28", "\xed\xa0\x80", "\xef\xbb\xbf", "\r\n", "\t", "\x1b[31m"};

void replace_number(std::string& text, std::mt19937_64& random) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const auto start = text.begin() + static_cast<std::ptrdiff_t>(below(text.size() + 1, random));
  const auto begin = std::find_if(start, text.end(), digit);
  const auto end = std::find_if_not(begin, text.end(), digit);
  text.replace(begin, end, one_of(kNumbers, random));
}

}  // namespace

Mutator::Mutator(std::vector<std::string> corpus, std::vector<std::string> words, std::uint64_t seed)
    : corpus_(std::move(corpus)), words_(std::move(words)), seed_(seed) {
  if (corpus_.empty()) throw std::invalid_argument("a corpus has at least one input");
}

std::string Mutator::input(std::uint64_t i) const {
  if (i < corpus_.size()) return corpus_[i];
  std::seed_seq sequence{seed_, seed_ >> 32, i, i >> 32};
  Random random(sequence);
  std::string text = one_of(corpus_, random);
  for (std::size_t changes = 1 + below(4, random); changes > 0; --changes) change(text, random);
  if (text.size() > kMostBytes) text.resize(kMostBytes);
  return text;
}

void Mutator::change(std::string& text, Random& random) const {
  const auto insert = [&](std::string_view what) { text.insert(below(text.size() + 1, random), what); };
  switch (below(13, random)) {
    case 0:  // a bit
      if (!text.empty()) {
        char& byte = text[below(text.size(), random)];
        byte = static_cast<char>(byte ^ (1 << below(8, random)));
      }
      break;
    case 1:
      return insert(one_of(kBytes, random));
    case 2:
    case 3:
      if (!words_.empty()) insert(one_of(words_, random));
      break;
    case 4: {
      const Range cut = some_range(text, random);
      text.erase(cut.begin, cut.length);
      break;
    }
    case 5: {
      const Range copied = some_range(text, random);
      return insert(text.substr(copied.begin, copied.length));
    }
    case 6: {
      const Range cut = some_line(text, random);
      text.erase(cut.begin, cut.length);
      break;
    }
    case 7: {  // a line stands again, or elsewhere
      const Range from = some_line(text, random);
      const std::string line = text.substr(from.begin, from.length);
      if (below(2, random) == 0) text.erase(from.begin, from.length);
      text.insert(some_line(text, random).begin, line);
      break;
    }
    case 8:
    case 9:
      return replace_number(text, random);
    case 10:  // torn
      text.resize(below(text.size() + 1, random));
      break;
    case 11: {  // half of this, half of another
      const std::string& other = one_of(corpus_, random);
      text = text.substr(0, below(text.size() + 1, random)) + other.substr(below(other.size() + 1, random));
      break;
    }
    case 12: {  // deep or long
      const std::string word = words_.empty() ? "[" : one_of(words_, random);
      std::string repeated;
      for (std::size_t times = std::size_t{1} << below(13, random); times > 0; --times) repeated += word;
      return insert(repeated);
    }
  }
}

}  // namespace fuzz
