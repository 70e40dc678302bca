// Inputs near those of a corpus: what a slip of the hand, a torn write or a rotten disk makes of a good file.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace fuzz {

class Mutator {
 public:
  // `corpus`: at least one input. `words`: what the format knows (keys, punctuation), put in now and then.
  Mutator(std::vector<std::string> corpus, std::vector<std::string> words, std::uint64_t seed);

  // Input number `i`: the corpus as it is first, then one to four changes of one of its inputs. The same for the same
  // seed and `i`, whatever was asked for before; at most kMostBytes long.
  [[nodiscard]] std::string input(std::uint64_t i) const;

  static constexpr std::size_t kMostBytes = std::size_t{1} << 16;

 private:
  using Random = std::mt19937_64;
  void change(std::string& text, Random& random) const;

  std::vector<std::string> corpus_, words_;
  std::uint64_t seed_;
};

}  // namespace fuzz
