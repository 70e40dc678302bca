// An oracle for how fast a loss on text may fall: a count of symbol sequences over the same batches.
//
// It predicts each token from the up to `order` tokens before it with what it has counted so far, and only then counts
// it: contexts of all lengths, each interpolated with the next shorter one (Witten & Bell 1991), the shortest with
// uniform. What it sees is what the model has seen. One pass of counting learns a sequence the first time it is met;
// gradient descent needs many meetings, so within the first passes over a text no honest model is below this loss.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace suites::training_cases {

class NgramOracle {
 public:
  explicit NgramOracle(std::int64_t vocab, int order = 5);
  // Predicts and learns row[1], row[2], ... one after another; contexts do not reach beyond the row. Returns the mean
  // negative log-likelihood in nats. The row has at least two tokens.
  double observe(std::span<const std::int64_t> row);

 private:
  struct Context {
    std::int64_t seen = 0, distinct = 0;  // tokens counted in this context, and how many different ones
  };
  [[nodiscard]] double probability(std::span<const std::int64_t> past, std::int64_t token) const;
  void count(std::span<const std::int64_t> past, std::int64_t token);

  std::int64_t vocab_;
  int order_;
  std::unordered_map<std::uint64_t, Context> contexts_;
  std::unordered_map<std::uint64_t, std::int64_t> counts_;  // of a token in a context
};

}  // namespace suites::training_cases
