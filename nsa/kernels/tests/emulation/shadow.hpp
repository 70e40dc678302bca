// What is known of memory, by pages: made when a page is first looked at.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

namespace nsa::kernels::emulation {

constexpr int kWordBytes = 4, kPageBytes = 4096, kPageWords = kPageBytes / kWordBytes;

// Page: made of the address of one of its bytes.
template <typename Page>
class Shadow {
 public:
  Page& of(const char* at) {
    const std::uintptr_t number = reinterpret_cast<std::uintptr_t>(at) / kPageBytes;
    Recent& entry = recent_[number % recent_.size()];
    if (entry.number != number) {
      std::unique_ptr<Page>& page = pages_[number];
      if (!page) page = std::make_unique<Page>(at);
      entry = {number, page.get()};
    }
    return *entry.page;
  }
  void forget_beyond(std::size_t most) {
    if (pages_.size() <= most) return;
    pages_.clear();
    recent_ = {};
  }

 private:
  struct Recent {
    std::uintptr_t number = 0;
    Page* page = nullptr;
  };
  std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages_;
  std::array<Recent, 256> recent_;
};

}  // namespace nsa::kernels::emulation
