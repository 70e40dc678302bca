// The keys that a query sees in the compressed and the window branch: an interval whose both ends never fall as
// the token grows, also across the documents of a packed batch. So a tile of neighbouring queries needs the
// keys from the first query's lower end to the last query's upper end, and a tile of neighbouring keys is
// needed by neighbouring queries.
#pragma once

#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/device/heads.cuh"

namespace nsa::kernels {

struct Interval {
  const int* first_token;
  const int* first_block;
  int l, w, S;
  Divisor by_d;
  bool window;

  __host__ __device__ explicit Interval(const AttentionForward& p)
      : first_token(p.packed.first_token),
        first_block(p.packed.first_block),
        l(p.geometry.l),
        w(p.geometry.w),
        S(p.S),
        by_d(p.geometry.d),
        window(p.mask == Mask::window) {}

  __device__ int begin(int t) const {
    if (!window) return first_block ? first_block[t] : 0;
    return max(first_token ? first_token[t] : 0, t - w + 1);
  }
  __device__ int end(int t) const {
    if (window) return t + 1;
    const int position = first_token ? t - first_token[t] : t;
    return begin(t) + (position + 1 < l ? 0 : by_d.quotient(position + 1 - l) + 1);
  }

  // The tokens that may see one of the keys [first, last): [first_query, last_query).
  __device__ int first_query(int first) const {
    return search([&](int t) { return end(t) > first; });
  }
  __device__ int last_query(int last) const {
    return search([&](int t) { return begin(t) >= last; });
  }

 private:
  template <typename Predicate>
  __device__ int search(
      Predicate&& holds) const {  // the first token for which it holds (false ... false true ... true)
    int low = 0, high = S;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (holds(middle))
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }
};

}  // namespace nsa::kernels
