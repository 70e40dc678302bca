#include "harness/suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "base/fnv1a.hpp"
#include "base/random.hpp"

namespace harness {

namespace {

using base::fnv1a;
using base::kFnvOffset;

std::uint64_t fnv1a(std::uint64_t hash, std::uint64_t number) {
  for (int byte = 0; byte < 8; ++byte) {
    const char one = static_cast<char>(number >> (8 * byte));
    hash = fnv1a(hash, std::string_view(&one, 1));
  }
  return hash;
}

// Ids are typed into shells and parsed by people: what separates the parts of an id cannot stand inside one.
void require_plain(const char* what, const std::string& text, const char* reserved) {
  if (text.find_first_of(reserved) != std::string::npos)
    throw std::logic_error(fmt::format("{} '{}' has a character that a case's id reserves", what, text));
}

}  // namespace

std::string_view to_string(Level level) {
  switch (level) {
    case Level::smoke:
      return "smoke";
    case Level::standard:
      return "standard";
  }
  throw std::logic_error("Level outside its enumeration");
}

Params::Params(std::initializer_list<std::pair<std::string, std::string>> items) {
  for (const auto& [key, value] : items) set(key, value);
}

void Params::set(const std::string& key, const std::string& value) {
  require_plain("parameter", key, "[],= /\n'\"");
  require_plain("parameter value", value, "[], \n'\"");
  const auto at = std::lower_bound(items_.begin(), items_.end(), key,
                                   [](const auto& item, const std::string& k) { return item.first < k; });
  if (at != items_.end() && at->first == key)
    at->second = value;
  else
    items_.insert(at, {key, value});
}

std::string case_id(const std::string& suite, const Case& c) {
  std::string id = suite + "/" + c.name;
  char separator = '[';
  for (const auto& [key, value] : c.params.items()) {
    id += fmt::format("{}{}={}", separator, key, value);
    separator = ',';
  }
  return separator == '[' ? id : id + "]";
}

std::string case_hash(std::string_view id) { return fmt::format("{:016x}", fnv1a(kFnvOffset, id)).substr(0, 8); }

std::string case_slug(std::string_view id) {
  constexpr std::size_t kLongest = 100;  // a file name has 255 bytes at most
  std::string slug;
  for (const char c : id.substr(0, kLongest)) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '=' || c == '.';
    if (plain)
      slug += c;
    else if (!slug.empty() && slug.back() != '-')
      slug += '-';
  }
  return fmt::format("{}{}{}", slug, slug.ends_with('-') ? "" : "-", case_hash(id));
}

std::uint64_t derive_seed(std::uint64_t master, std::string_view id, std::string_view purpose, int trial) {
  std::uint64_t hash = fnv1a(kFnvOffset, master);
  hash = fnv1a(fnv1a(hash, id), std::uint64_t{id.size()});  // the length separates "ab"+"c" from "a"+"bc"
  hash = fnv1a(fnv1a(hash, purpose), std::uint64_t{purpose.size()});
  // FNV-1a mixes its last bytes badly into the high bits; seeds need all of them.
  return base::mixed(fnv1a(hash, static_cast<std::uint64_t>(trial)));
}

}  // namespace harness
