#include "harness/minimise.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace harness {

namespace {

constexpr int kBisections = 6;  // between a size that fails and its half that does not

std::string group_of(const std::string& key) { return key.substr(0, key.find('.')); }

std::string text_of(const std::vector<Size>& sizes) {
  std::string text;
  for (const Size& size : sizes) text += to_string(size) + ";";
  return text;
}

}  // namespace

std::string to_string(const Size& size) {
  return size.list ? fmt::format("[{}]", fmt::join(size.value, ", ")) : std::to_string(size.value.at(0));
}

bool Minimiser::attempt(std::vector<Size> sizes, const std::string& change) {
  if (stopped_ || sizes == best_ || !seen_.insert(text_of(sizes)).second) return false;
  switch (attempt_(sizes, change)) {
    case Tried::same:
      best_ = std::move(sizes);
      return true;
    case Tried::stop:
      stopped_ = true;
      return false;
    case Tried::other:
    case Tried::refused:
      return false;
  }
  return false;
}

bool Minimiser::halve(const std::string& what, const std::function<bool(const Size&)>& which) {
  std::vector<Size> sizes = best_;
  for (Size& size : sizes)
    if (which(size))
      for (std::int64_t& value : size.value)
        if (value > size.smallest) value = std::max(size.smallest, value / 2);
  return attempt(std::move(sizes), what + " halved");
}

// Halves of the list first, then quarters, down to single elements; one stays.
bool Minimiser::drop_elements(std::size_t number) {
  bool changed = false;
  for (std::size_t part = best_[number].value.size() / 2; part > 0; part /= 2) {
    for (std::size_t begin = 0; begin < best_[number].value.size() && best_[number].value.size() > part;) {
      std::vector<Size> sizes = best_;
      auto& value = sizes[number].value;
      const auto first = value.begin() + static_cast<std::ptrdiff_t>(begin);
      value.erase(first, first + static_cast<std::ptrdiff_t>(std::min(part, value.size() - begin)));
      const std::string change =
          fmt::format("{} {} -> {}", sizes[number].key, to_string(best_[number]), to_string(sizes[number]));
      if (!value.empty() && attempt(std::move(sizes), change))
        changed = true;
      else
        begin += part;
    }
  }
  return changed;
}

bool Minimiser::set(std::size_t number, std::size_t element, std::int64_t value) {
  std::vector<Size> sizes = best_;
  sizes[number].value[element] = value;
  const std::string change =
      fmt::format("{} {} -> {}", sizes[number].key, to_string(best_[number]), to_string(sizes[number]));
  return attempt(std::move(sizes), change);
}

bool Minimiser::shrink(std::size_t number, std::size_t element) {
  const std::int64_t before = best_[number].value[element], smallest = best_[number].smallest;
  if (before <= smallest) return false;
  if (set(number, element, smallest)) return true;
  const auto now = [&] { return best_[number].value[element]; };
  while (now() / 2 > smallest && set(number, element, now() / 2)) {
  }
  std::int64_t low = std::max(smallest, now() / 2);
  if (!bisect_ && now() == before) return false;
  for (int i = 0; i < kBisections && now() - low > 1 && !stopped_; ++i) {
    const std::int64_t middle = low + (now() - low) / 2;
    if (!set(number, element, middle)) low = middle;
  }
  return now() < before;
}

std::vector<Size> Minimiser::run() {
  std::set<std::string> groups;
  for (const Size& size : best_) groups.insert(group_of(size.key));
  for (bool changed = true; changed && !stopped_; bisect_ = false) {
    changed = false;
    while (halve("all", [](const Size&) { return true; })) changed = true;
    for (const std::string& group : groups)
      while (halve(group, [&](const Size& size) { return group_of(size.key) == group; })) changed = true;
    for (std::size_t i = 0; i < best_.size(); ++i) {
      if (best_[i].list) changed = drop_elements(i) || changed;
      for (std::size_t j = 0; j < best_[i].value.size(); ++j) changed = shrink(i, j) || changed;
    }
  }
  return best_;
}

}  // namespace harness
