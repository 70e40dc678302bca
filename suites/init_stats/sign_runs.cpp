#include "suites/init_stats/sign_runs.hpp"

#include <ATen/ATen.h>

#include <map>
#include <utility>

namespace suites::init_laws {

namespace {

// The same for a run and its inverse.
std::uint64_t canonical(std::uint64_t signs) { return (signs & 1) != 0 ? ~signs : signs; }

// A set of words that may say yes to a word that it does not hold, and never no to one that it does: most places are
// settled by one look at a bitmap.
class Filter {
 public:
  Filter() : bits_(std::size_t{1} << (kLog - 6)) {}
  void insert(std::uint64_t word) { bits_[slot(word) / 64] |= std::uint64_t{1} << (slot(word) % 64); }
  [[nodiscard]] bool may_hold(std::uint64_t word) const {
    return (bits_[slot(word) / 64] >> (slot(word) % 64) & 1) != 0;
  }

 private:
  static constexpr int kLog = 25;  // 4 MiB
  static std::size_t slot(std::uint64_t word) { return (word * 0x9e3779b97f4a7c15) >> (64 - kLog); }
  std::vector<std::uint64_t> bits_;
};

}  // namespace

void SignRuns::add(const std::string& name, const at::Tensor& values) {
  const at::Tensor negative = values.detach().flatten().lt(0).to(at::kByte).cpu().contiguous();
  if (negative.numel() < kRun) return;
  Stream stream{name, negative.numel(),
                std::vector<std::uint64_t>(static_cast<std::size_t>(negative.numel() / 64 + 2))};
  const auto* sign = negative.const_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < stream.size; ++i)
    stream.bits[static_cast<std::size_t>(i / 64)] |= static_cast<std::uint64_t>(sign[i]) << (i % 64);
  streams_.push_back(std::move(stream));
}

std::uint64_t SignRuns::word(const Stream& stream, std::int64_t offset) {
  const auto index = static_cast<std::size_t>(offset / 64);
  const int shift = static_cast<int>(offset % 64);
  const std::uint64_t low = stream.bits[index] >> shift;
  return shift == 0 ? low : low | stream.bits[index + 1] << (64 - shift);
}

bool SignRuns::same_run(const Place& a, const Place& b) const {
  const Stream &x = streams_[a.stream], &y = streams_[b.stream];
  if (a.offset + kRun > x.size || b.offset + kRun > y.size) return false;
  const std::uint64_t invert = word(x, a.offset) == word(y, b.offset) ? 0 : ~std::uint64_t{0};
  for (std::int64_t i = 0; i < kRun; i += 64)
    if (word(x, a.offset + i) != (word(y, b.offset + i) ^ invert)) return false;
  return true;
}

// Every kRun-th place of every stream is an anchor; then every place of every stream asks whether it
// begins as an anchor does.
std::vector<SignRuns::Repeat> SignRuns::repeats() const {
  std::unordered_multimap<std::uint64_t, Place> anchors;
  Filter filter;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    for (std::int64_t at = 0; at + kRun <= streams_[s].size; at += kRun) {
      const std::uint64_t key = canonical(word(streams_[s], at));
      if (key == 0) continue;  // one sign only
      anchors.emplace(key, Place{s, at});
      filter.insert(key);
    }
  }
  std::map<std::pair<std::size_t, std::size_t>, Repeat> found;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    for (std::int64_t at = 0; at + kRun <= streams_[s].size; ++at) {
      const std::uint64_t key = canonical(word(streams_[s], at));
      if (key == 0 || !filter.may_hold(key)) continue;
      const auto [begin, end] = anchors.equal_range(key);
      for (auto anchor = begin; anchor != end; ++anchor) {
        const Place a = anchor->second, here{s, at};
        if ((a.stream == s && a.offset == at) || !same_run(a, here)) continue;
        const bool ahead = a.stream <= s;
        Repeat& repeat = found[ahead ? std::pair{a.stream, s} : std::pair{s, a.stream}];
        if (repeat.runs++ > 0) continue;
        const Place &first = ahead ? a : here, &second = ahead ? here : a;
        repeat.first = streams_[first.stream].name;
        repeat.second = streams_[second.stream].name;
        repeat.first_offset = first.offset;
        repeat.second_offset = second.offset;
        repeat.inverted = word(streams_[a.stream], a.offset) != word(streams_[s], at);
      }
    }
  }
  std::vector<Repeat> all;
  for (auto& [pair, repeat] : found) all.push_back(std::move(repeat));
  return all;
}

std::int64_t SignRuns::values() const {
  std::int64_t sum = 0;
  for (const Stream& stream : streams_) sum += stream.size;
  return sum;
}

}  // namespace suites::init_laws
