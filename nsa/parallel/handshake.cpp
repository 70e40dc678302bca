#include "nsa/parallel/handshake.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/statistics.hpp"

namespace nsa::parallel {

namespace {

constexpr const char* kAbsent = "(absent)";

std::string value_of(const Facts& facts, const std::string& name) {
  const auto found = std::find_if(facts.begin(), facts.end(), [&](const auto& fact) { return fact.first == name; });
  return found == facts.end() ? kAbsent : found->second;
}

// The names of all ranks' facts, in the order in which they are met first.
std::vector<std::string> names_of(const std::vector<Facts>& all) {
  std::vector<std::string> names;
  std::map<std::string, bool> met;
  for (const Facts& facts : all)
    for (const auto& [name, value] : facts)
      if (!std::exchange(met[name], true)) names.push_back(name);
  return names;
}

std::vector<Facts> gathered(Group& group, const std::string& about, const Facts& mine) {
  nlohmann::json text = nlohmann::json::array();
  for (const auto& [name, value] : mine) text.push_back({name, value});
  std::vector<Facts> all;
  for (const auto& one : group.gather(about, text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))) {
    Facts facts;
    for (const auto& fact : nlohmann::json::parse(one)) facts.emplace_back(fact.at(0), fact.at(1));
    all.push_back(std::move(facts));
  }
  return all;
}

// Bits as integers of the same width.
at::ScalarType integers_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    case 8:
      return at::kLong;
    default:
      throw std::invalid_argument(fmt::format("bit_sums: elements of {} bytes", tensor.element_size()));
  }
}

}  // namespace

std::vector<Difference> differences(const std::vector<Facts>& all) {
  std::vector<Difference> found;
  for (const std::string& name : names_of(all)) {
    std::vector<std::string> values;
    std::map<std::string, int> counts;
    for (const Facts& facts : all) ++counts[values.emplace_back(value_of(facts, name))];
    std::string usual = values.front();
    for (const auto& [value, count] : counts)
      if (count > counts[usual]) usual = value;
    Difference difference{name, {}, "", usual};
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      if (values[rank] == usual) continue;
      if (difference.ranks.empty()) difference.theirs = values[rank];
      difference.ranks.push_back(static_cast<int>(rank));
    }
    if (!difference.ranks.empty()) found.push_back(std::move(difference));
  }
  return found;
}

std::string describe(const Difference& difference) {
  const bool one = difference.ranks.size() == 1;
  return fmt::format("{} of {} {} {} {}, of the others {}", difference.fact, one ? "rank" : "ranks",
                     fmt::join(difference.ranks, ", "), one ? "is" : "is first", difference.theirs, difference.usual);
}

void agree(Group& group, const std::string& about, const Facts& mine) {
  const auto found = differences(gathered(group, about, mine));
  if (found.empty()) return;
  std::vector<std::string> sentences;
  sentences.reserve(found.size());
  for (const auto& one : found) sentences.push_back(describe(one));
  throw Disagreement(fmt::format("the ranks do not agree: {}", fmt::join(sentences, "; ")), found.front().ranks,
                     found.front().fact);
}

bool all_of(Group& group, const std::string& about, bool mine) {
  const auto all = group.gather(about, mine ? "yes" : "no");
  return std::all_of(all.begin(), all.end(), [](const std::string& one) { return one == "yes"; });
}

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void agree_on_time(Group& group, double most_s, double (*now_s)()) {
  (void)group.gather("meeting for the time", "");  // so that all look at their clocks at one moment
  std::vector<double> times;
  for (const auto& one : group.gather("time", fmt::format("{:.6f}", now_s()))) times.push_back(std::stod(one));
  const double median = base::nearest_rank(times, 0.5);  // one rank's own clock
  for (std::size_t rank = 0; rank < times.size(); ++rank)
    if (!(std::abs(times[rank] - median) <= most_s))
      throw Disagreement(fmt::format("the clock of rank {} is {:+.1f} s from that of most ranks, {} s are allowed",
                                     rank, times[rank] - median, most_s),
                         {static_cast<int>(rank)}, "clock");
}

std::vector<std::int64_t> bit_sums(const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor bits = tensor.detach().contiguous().flatten().view(integers_of(tensor));
    sums.push_back(bits.sum(at::kLong));
  }
  if (sums.empty()) return {};
  const at::Tensor all = at::stack(sums).to(at::kCPU);  // one wait for the device
  const auto* first = all.const_data_ptr<std::int64_t>();
  return {first, first + all.numel()};
}

void agree_on_bits(Group& group, const std::string& about, const NamedTensors& tensors) {
  Facts facts;
  const auto sums = bit_sums(tensors);
  for (std::size_t i = 0; i < sums.size(); ++i) facts.emplace_back(tensors[i].first, fmt::format("{:x}", sums[i]));
  const auto found = differences(gathered(group, about, facts));
  if (found.empty()) return;
  throw WeightsDiffer(
      fmt::format("{}: the bits of {} are not those of the other ranks on {} {} ({} of {} tensors differ)", about,
                  found.front().fact, found.front().ranks.size() == 1 ? "rank" : "ranks",
                  fmt::join(found.front().ranks, ", "), found.size(), tensors.size()),
      found.front().ranks, found.front().fact);
}

}  // namespace nsa::parallel
