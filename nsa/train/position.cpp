#include "nsa/train/position.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>
#include <vector>

namespace nsa::train {

namespace {

const nlohmann::json& member(const nlohmann::json& position, const std::string& key) {
  if (!position.is_object()) throw std::invalid_argument("data position: " + position.dump() + " is no object");
  const auto found = position.find(key);
  // Signed while it is in memory, unsigned once it was read from a file.
  const bool counts = found != position.end() && found->is_number_integer() &&
                      (found->is_number_unsigned() || found->get<std::int64_t>() >= 0);
  if (!counts)
    throw std::invalid_argument(fmt::format("data position: {} is {}; allowed: an integer from 0", key,
                                            found == position.end() ? "missing" : found->dump()));
  return *found;
}

}  // namespace

void check_identity(const nlohmann::json& identity, const nlohmann::json& position) {
  if (!position.is_object()) throw std::invalid_argument("data position: " + position.dump() + " is no object");
  std::vector<std::string> wrong;
  for (const auto& [key, here] : identity.items()) {
    const auto there = position.find(key);
    if (there == position.end()) {
      wrong.push_back(fmt::format("{} is missing, here it is {}", key, here.dump()));
    } else if (*there != here) {
      wrong.push_back(fmt::format("{} is {}, here it is {}", key, there->dump(), here.dump()));
    }
  }
  if (!wrong.empty()) throw std::invalid_argument(fmt::format("data position: {}", fmt::join(wrong, "; ")));
}

std::int64_t count_at(const nlohmann::json& position, const std::string& key, std::int64_t highest) {
  const auto value = member(position, key).get<std::uint64_t>();
  if (value > static_cast<std::uint64_t>(highest))
    throw std::invalid_argument(fmt::format("data position: {} is {}; allowed: 0 to {}", key, value, highest));
  return static_cast<std::int64_t>(value);
}

std::uint64_t state_at(const nlohmann::json& position, const std::string& key) {
  return member(position, key).get<std::uint64_t>();
}

}  // namespace nsa::train
