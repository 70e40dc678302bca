// How the query lists of a problem are made (lists.cu), in one launch or in three, and the workspace: by the problem
// alone, of whose pointers nothing is looked at.
#pragma once

#include <algorithm>
#include <cstdint>

#include "nsa/kernels/selected/lists.hpp"

namespace nsa::kernels {

struct InversePlan {
  // Small is a problem in whose sets there are at most so many lists, words of the bits of all of them, and numbers in
  // the rows of the table, which every CTA reads.
  static constexpr int kSmallLists = 512, kSmallWords = 4096;
  static constexpr std::int64_t kSmallNumbers = 65536;
  // Of others: tokens and blocks whose bits lie in shared memory at once; counts, at most: 48 MB (unless one chunk's
  // are more).
  static constexpr int kPartTokens = 256, kMostWindow = 2048;
  static constexpr std::int64_t kCounts = 12 << 20;

  int tokens, stretch;  // of all stretches; of one, at most
  std::int64_t sets;
  int words;                   // of a list's bits
  bool small;                  // one launch
  int shares = 0;              // small: CTAs of a set
  int parts = 0, chunks = 0;   // else: of a chunk; of a set
  int window = 0;              // blocks whose bits lie in shared memory at once
  int launches = 0;            // of kernels; of fewer pairs or tokens not more, what is small stays so
  std::int64_t workspace = 0;  // bytes; enough for fewer pairs or tokens too, which may be cut into more chunks

  explicit InversePlan(const Inverse& p)
      : tokens((p.end > 0 ? p.end : p.S) - p.begin),
        stretch(p.stretch > 0 ? std::min(p.stretch, tokens) : tokens),
        sets(std::int64_t{p.B} * p.G * count(tokens, std::max(stretch, 1))),
        words(count(stretch, 32)),
        small(p.J <= kSmallLists && std::int64_t{p.J} * words <= kSmallWords &&
              std::int64_t{stretch} * p.geometry.n <= kSmallNumbers) {
    const std::int64_t lists = sets * p.J;
    const int all_parts = count(stretch, kPartTokens);
    // A set's count of finished CTAs besides.
    workspace = (std::min(lists * all_parts, std::max(lists, kCounts)) + sets) * static_cast<std::int64_t>(sizeof(int));
    if (lists == 0) return;
    launches = small ? 1 : 3;
    // Several CTAs of a set each read all of its rows: only where there are few sets.
    if (small) {
      shares = static_cast<int>(std::clamp<std::int64_t>(32 / sets, 1, std::min(p.J, 8)));
      return;
    }
    parts = count(all_parts, static_cast<int>(std::clamp<std::int64_t>(kCounts / lists, 1, all_parts)));
    chunks = count(all_parts, parts);
    window = std::min(p.J, kMostWindow);
  }

 private:
  static int count(int all, int each) { return (all + each - 1) / each; }
};

}  // namespace nsa::kernels
