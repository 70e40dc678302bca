// Positions of streams as JSON: what a stream reads (its identity), and where it is in it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace nsa::train {

// Throws std::invalid_argument naming every member of `identity` that `position` lacks or says otherwise.
void check_identity(const nlohmann::json& identity, const nlohmann::json& position);
// A number of a position. Throws std::invalid_argument when it is missing, no integer or outside [0, highest].
[[nodiscard]] std::int64_t count_at(const nlohmann::json& position, const std::string& key, std::int64_t highest);
// As it is: the state of a generator.
[[nodiscard]] std::uint64_t state_at(const nlohmann::json& position, const std::string& key);

}  // namespace nsa::train
