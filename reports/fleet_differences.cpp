// In what hosts differ: a value that most of them share, and who has another.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/fnv1a.hpp"
#include "reports/fleet_parts.hpp"

namespace reports::fleets {

namespace {

using Kind = FleetDifference::Kind;
using Group = FleetDifference::Group;

constexpr std::size_t kLeastHosts = 4;  // of fewer nobody is odd by its bits, nor is every value one of its own

// Values of one name, and who has each.
class Values {
 public:
  void add(const std::string& value, std::size_t host) {
    const auto [at, fresh] = where_.try_emplace(value, groups_.size());
    if (fresh) groups_.push_back({value, {}});
    groups_[at->second].hosts.push_back(host);
    ++told_;
  }
  // Those of `hosts` that did not tell it have the value "".
  void fill(const std::vector<std::size_t>& hosts) {
    if (told_ == hosts.size()) return;
    std::vector<std::size_t> told;
    for (const Group& group : groups_) told.insert(told.end(), group.hosts.begin(), group.hosts.end());
    std::sort(told.begin(), told.end());
    for (const std::size_t host : hosts)
      if (!std::binary_search(told.begin(), told.end(), host)) add("", host);
  }
  [[nodiscard]] std::size_t told() const { return told_; }
  [[nodiscard]] std::vector<Group> take() {
    std::stable_sort(groups_.begin(), groups_.end(),
                     [](const Group& a, const Group& b) { return a.hosts.size() > b.hosts.size(); });
    return std::move(groups_);
  }

 private:
  std::vector<Group> groups_;
  std::unordered_map<std::string, std::size_t> where_;
  std::size_t told_ = 0;
};

std::vector<std::size_t> with_run(const Fleet& fleet) {
  std::vector<std::size_t> hosts;
  for (std::size_t i = 0; i < fleet.hosts.size(); ++i)
    if (fleet.hosts[i].has_run()) hosts.push_back(i);
  return hosts;
}

void compare_facts(Fleet& fleet, const std::vector<std::size_t>& hosts) {
  std::map<std::string, Values> all;
  for (const std::size_t i : hosts)
    for (const auto& [name, value] : fleet.hosts[i].facts) all[name].add(value, i);
  for (auto& [name, values] : all) {
    // What a case saw (gpu.*) is not told by a host that did not come to it.
    if (!name.starts_with("gpu.")) values.fill(hosts);
    const std::size_t told = values.told();
    FleetDifference row{name, is_of_validation(name) ? Kind::validation : Kind::machine, false, false, values.take()};
    if (row.groups.size() < 2) continue;
    row.majority = 2 * row.groups[0].hosts.size() > told;
    row.individual = row.kind == Kind::machine && told >= kLeastHosts && 2 * row.groups.size() > told;
    fleet.differences.push_back(std::move(row));
  }
}

// Hosts of one key can be expected to compute the same bits.
std::string peers_key(const FleetHost& host) {
  std::uint64_t hash = base::kFnvOffset;
  const auto add = [&](const std::string& text) { hash = base::fnv1a(base::fnv1a(hash, text), "\n"); };
  add(host.kind);
  for (const auto& [name, value] : host.facts)
    if (is_of_validation(name) || name == "torch.threads" || name == "host.cores" || name == "host.cpu") {
      add(name);
      add(value);
    }
  return std::to_string(hash);
}

// A figure that is not repeatable has no value that three of four hosts share, and nobody is odd.
void compare_bits(Fleet& fleet, const std::vector<std::size_t>& hosts) {
  std::map<std::string, std::vector<std::size_t>> peers;
  for (const std::size_t i : hosts) peers[peers_key(fleet.hosts[i])].push_back(i);
  for (const auto& [key, same] : peers) {
    if (same.size() < kLeastHosts) continue;
    std::map<std::string, Values> all;
    for (const std::size_t i : same)
      for (const auto& [name, value] : fleet.hosts[i].bits) all[name].add(value, i);
    for (auto& [name, values] : all) {
      const std::size_t told = values.told();
      FleetDifference row{name, Kind::bits, true, false, values.take()};
      if (told >= kLeastHosts && row.groups.size() > 1 && 4 * row.groups[0].hosts.size() >= 3 * told)
        fleet.differences.push_back(std::move(row));
    }
  }
}

}  // namespace

bool is_of_validation(const std::string& fact) {
  static constexpr std::array<std::string_view, 9> kPrefixes{
      "program.", "build.", "settings.", "config.", "flags.", "selection.", "plan.", "torch.version", "cuda.runtime"};
  return fact != "build.source_hash" &&  // of the sources that lie there now, not of what ran
         std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](std::string_view p) { return fact.starts_with(p); });
}

void find_differences(Fleet& fleet) {
  const std::vector<std::size_t> hosts = with_run(fleet);
  compare_facts(fleet, hosts);
  compare_bits(fleet, hosts);
  std::stable_sort(fleet.differences.begin(), fleet.differences.end(),
                   [](const FleetDifference& a, const FleetDifference& b) {
                     return std::pair(a.kind, a.individual) < std::pair(b.kind, b.individual);
                   });
}

}  // namespace reports::fleets
