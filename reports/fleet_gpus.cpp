// Runs of one host on different GPUs.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "reports/fleet_parts.hpp"

namespace reports::fleets {

namespace {

using Gpu = FleetHost::Gpu;
using Places = std::vector<FleetHost*>;

constexpr const char* kVisible = "environment.CUDA_VISIBLE_DEVICES";

// By the first that both tell. A number of CUDA_VISIBLE_DEVICES is worth least: it is counted in an order of the
// machine's.
bool same_gpu(const Gpu& a, const Gpu& b) {
  if (!a.uuid.empty() && !b.uuid.empty()) return a.uuid == b.uuid;
  if (!a.bus_id.empty() && !b.bus_id.empty()) return a.bus_id == b.bus_id;
  return a.visible == b.visible;
}

// The number that CUDA_VISIBLE_DEVICES gives it; "" where that has another form.
std::string visible_number(const Gpu& gpu) {
  constexpr std::size_t kMostDigits = 4;
  if (gpu.visible.empty()) return "0";
  const std::string first = gpu.visible.substr(0, gpu.visible.find(','));
  return first.size() <= kMostDigits && first.find_first_not_of("0123456789") == std::string::npos ? first : "";
}

// Those with one GPU together.
std::vector<Places> by_gpu(const Places& places) {
  std::vector<Places> gpus;
  for (FleetHost* place : places) {
    const auto at = std::find_if(gpus.begin(), gpus.end(),
                                 [&](const Places& others) { return same_gpu(*others.front()->gpu, *place->gpu); });
    if (at == gpus.end())
      gpus.push_back({place});
    else
      at->push_back(place);
  }
  return gpus;
}

// Numbers by CUDA_VISIBLE_DEVICES where they tell the GPUs apart, else in the order of the bus.
std::vector<std::string> numbers_of(std::vector<Places>& gpus) {
  std::set<std::string> different;
  std::vector<std::string> numbers;
  bool told = true;
  for (const Places& gpu : gpus) {
    numbers.push_back(visible_number(*gpu.front()->gpu));
    told = told && !numbers.back().empty() && different.insert(numbers.back()).second;
    for (const FleetHost* place : gpu) told = told && visible_number(*place->gpu) == numbers.back();
  }
  if (told) return numbers;
  const auto place_of = [](const Places& gpu) {
    const Gpu& one = *gpu.front()->gpu;
    return std::tie(one.bus_id, one.uuid, one.visible);
  };
  std::stable_sort(gpus.begin(), gpus.end(),
                   [&](const Places& a, const Places& b) { return place_of(a) < place_of(b); });
  for (std::size_t i = 0; i < gpus.size(); ++i) numbers[i] = std::to_string(i);
  return numbers;
}

}  // namespace

void name_by_gpu(std::vector<FleetHost>& hosts, const std::vector<std::string>& expected) {
  std::map<std::string, Places> by_host;
  for (FleetHost& host : hosts)
    if (host.gpu && host.has_run()) by_host[host.name].push_back(&host);
  bool any = false;
  for (const auto& [name, places] : by_host) {
    std::vector<Places> gpus = by_gpu(places);
    const std::string with_gpu = name + ":gpu";
    const bool by_name =
        std::any_of(expected.begin(), expected.end(), [&](const auto& one) { return one.starts_with(with_gpu); });
    if (gpus.size() < 2 && !by_name) continue;
    any = true;
    const std::vector<std::string> numbers = numbers_of(gpus);
    for (std::size_t i = 0; i < gpus.size(); ++i)
      for (FleetHost* place : gpus[i]) {
        place->on_host = name;
        place->name = with_gpu + numbers[i];
      }
  }
  if (!any) return;
  for (FleetHost& host : hosts) host.facts.erase(kVisible);  // by which a GPU was chosen
}

}  // namespace reports::fleets
