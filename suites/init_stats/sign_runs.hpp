// Finds a random stream that was used twice, also at another scale: two laws turn the same stream into values that
// differ by a factor, and signs survive a factor. A run of 128 signs occurs twice by chance with probability 2^-128 a
// pair of places.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace suites::init_laws {

class SignRuns {
 public:
  static constexpr std::int64_t kRun = 128;

  // Parameters shorter than one run are passed over; so are runs of a single sign, which no stream gives.
  void add(const std::string& name, const at::Tensor& values);

  struct Repeat {
    std::string first, second;                     // first < second in the order of adding, or one and the same
    std::int64_t first_offset = 0, second_offset;  // of one common run, in elements
    bool inverted = false;                         // by a negative factor
    std::int64_t runs = 0;                         // common runs in all
  };
  // One entry for each pair of parameters. Any common stretch of 2 * kRun values is found, at whatever offsets.
  [[nodiscard]] std::vector<Repeat> repeats() const;

  [[nodiscard]] std::int64_t values() const;

 private:
  struct Stream {
    std::string name;
    std::int64_t size = 0;
    std::vector<std::uint64_t> bits;  // 1: negative; element i is bit i % 64 of word i / 64
  };
  struct Place {
    std::size_t stream;
    std::int64_t offset;
  };
  std::vector<Stream> streams_;

  // 64 signs from `offset` on.
  [[nodiscard]] static std::uint64_t word(const Stream& stream, std::int64_t offset);
  [[nodiscard]] bool same_run(const Place& a, const Place& b) const;
};

}  // namespace suites::init_laws
