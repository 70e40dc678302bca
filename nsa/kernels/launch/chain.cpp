#include "nsa/kernels/launch/chain.hpp"

#include <algorithm>
#include <cstring>

namespace nsa::kernels {

namespace {

constexpr std::size_t kAlignment = 16;

bool same(const dim3& a, const dim3& b) { return a.x == b.x && a.y == b.y && a.z == b.z; }

}  // namespace

void Chain::add(const LaunchCall& call) {
  Link link;
  link.call = call;
  link.call.values = {};
  link.call.sizes = {};
  link.first_value = offsets_.size();
  link.values = call.values.size();
  link.first_byte = bytes_.size();
  for (std::size_t i = 0; i < call.values.size(); ++i) {
    const std::size_t at = bytes_.size(), size = call.sizes[i];
    bytes_.resize(at + (size + kAlignment - 1) / kAlignment * kAlignment);  // what lies between is 0
    std::memcpy(bytes_.data() + at, call.values[i], size);
    offsets_.push_back(at);
    sizes_.push_back(size);
  }
  link.end_byte = bytes_.size();
  links_.push_back(link);
}

bool Chain::name(const char* kernel) {
  bool any = false;
  for (auto link = links_.rbegin(); link != links_.rend() && !link->name; ++link) {
    link->name = kernel;
    any = true;
  }
  return any;
}

void Chain::clear() {
  links_.clear();
  bytes_.clear();
  offsets_.clear();
  sizes_.clear();
}

LaunchCall Chain::operator[](std::size_t i) const {
  const Link& link = links_[i];
  values_.clear();
  for (std::size_t value = 0; value < link.values; ++value)
    values_.push_back(const_cast<std::byte*>(bytes_.data()) + offsets_[link.first_value + value]);
  LaunchCall call = link.call;
  call.values = values_;
  call.sizes = {sizes_.data() + link.first_value, link.values};
  return call;
}

std::string Chain::name_of(std::size_t i) const { return links_[i].name ? links_[i].name : "a kernel without a name"; }

bool Chain::same_shape(const Chain& other) const {
  return std::equal(
      links_.begin(), links_.end(), other.links_.begin(), other.links_.end(),
      [](const Link& a, const Link& b) { return a.call.kernel == b.call.kernel && a.call.early == b.call.early; });
}

bool Chain::same_launch(const Chain& other, std::size_t i) const {
  const Link &a = links_[i], &b = other.links_[i];
  const std::size_t size = a.end_byte - a.first_byte;
  return same(a.call.ctas, b.call.ctas) && same(a.call.threads, b.call.threads) && a.call.bytes == b.call.bytes &&
         size == b.end_byte - b.first_byte &&
         std::memcmp(bytes_.data() + a.first_byte, other.bytes_.data() + b.first_byte, size) == 0;
}

}  // namespace nsa::kernels
