#include "nsa/bench/peers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cctype>
#include <cmath>
#include <fstream>
#include <map>

#include "base/parse_number.hpp"

namespace nsa::bench {

namespace {

constexpr std::array kColumns = {"index", "config", "implementation", "what", "mode", "S", "ms"};

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char c : line) {
    if (c == ',')
      cells.emplace_back();
    else
      cells.back() += c;
  }
  return cells;
}

// A number that fills the whole cell and is above 0.
template <typename Number>
Number positive(const std::string& cell, const std::string& column, const std::string& where) {
  const auto value = base::parse_number<Number>(cell);
  if (!value || !(*value > 0) || !std::isfinite(static_cast<double>(*value)))
    throw PeersInvalid(fmt::format("{}: {} is '{}', a number above 0 is needed", where, column, cell));
  return *value;
}

}  // namespace

Peers Peers::read(const std::filesystem::path& file) {
  std::ifstream text(file);
  if (!text) throw PeersInvalid(fmt::format("{}: cannot be read", file.string()));
  return parse(text, file.string());
}

Peers Peers::parse(std::istream& text, const std::string& name) {
  Peers peers;
  std::map<std::string, std::size_t> columns;
  std::string line;
  for (int number = 1; std::getline(text, line); ++number) {
    const std::string where = fmt::format("{}:{}", name, number);
    if (line.ends_with('\r')) line.pop_back();
    if (line.starts_with("# ") && number == 1) peers.origin_ = line.substr(2);
    if (line.empty() || line.starts_with('#')) continue;
    const auto cells = cells_of(line);
    if (columns.empty()) {
      for (std::size_t i = 0; i < cells.size(); ++i)
        if (!columns.emplace(cells[i], i).second)
          throw PeersInvalid(fmt::format("{}: the column '{}' stands twice", where, cells[i]));
      for (const char* column : kColumns)
        if (!columns.contains(column))
          throw PeersInvalid(fmt::format("{}: no column '{}' (needed: {})", where, column, fmt::join(kColumns, ", ")));
      continue;
    }
    if (cells.size() != columns.size())
      throw PeersInvalid(fmt::format("{}: {} cells, the header has {}", where, cells.size(), columns.size()));
    const auto cell = [&](const char* column) -> const std::string& { return cells[columns.at(column)]; };
    peers.rows_.push_back({cell("index"), cell("config"), cell("implementation"), cell("what"), cell("mode"),
                           positive<std::int64_t>(cell("S"), "S", where), positive<double>(cell("ms"), "ms", where)});
  }
  if (columns.empty()) throw PeersInvalid(name + ": no header");
  return peers;
}

bool Peers::measured_on(const std::string& gpu) const {
  const std::size_t at = gpu.empty() ? std::string::npos : origin_.find(gpu);
  if (at == std::string::npos) return false;
  const std::size_t end = at + gpu.size();  // "NVIDIA H20" is no H200
  return end == origin_.size() || !std::isalnum(static_cast<unsigned char>(origin_[end]));
}

std::optional<Peer> Peers::fastest(const PeerKey& key) const {
  std::optional<Peer> best;
  for (const Peer& row : rows_) {
    if (row.config != key.config || row.what != key.what || row.mode != key.mode || row.S != key.S) continue;
    if (!key.index.empty() && row.index != key.index) continue;
    if (!best || row.ms < best->ms) best = row;
  }
  return best;
}

}  // namespace nsa::bench
