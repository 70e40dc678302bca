// The last collectives of this rank: which were begun, which ended. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "nsa/parallel/group.hpp"

namespace nsa::parallel {

class Ring {
 public:
  static constexpr std::size_t kKept = 64;

  std::uint64_t begin(std::string_view name, std::int64_t elements, std::string dtype, double now_s);
  void waits(std::uint64_t sequence, bool does);  // for the others: it has done its own part
  void end(std::uint64_t sequence, double now_s);
  // Of a collective that a GPU was given: nobody tells when it has ended. look() asks, the oldest first, as a stream
  // runs them in order; one that is not done keeps those behind it open. It may stand still in the GPU's driver: nobody
  // else waits for it then. `done` goes in a thread that calls look() or begin().
  void ends_when(std::uint64_t sequence, std::function<bool()> done);
  void look(double now_s);
  void freeze();  // from now on look() sees nothing end: what is broken off is done too

  [[nodiscard]] std::vector<CollectiveRecord> all() const;
  // The oldest that has not ended, and whether it was given to the backend.
  struct Open {
    CollectiveRecord record;
    bool sent = false;
  };
  [[nodiscard]] std::optional<Open> open() const;
  [[nodiscard]] std::optional<CollectiveRecord> last() const;

 private:
  struct Entry : Open {
    std::shared_ptr<const std::function<bool()>> done = {};
  };
  mutable std::mutex mutex_;
  std::deque<Entry> kept_;
  bool frozen_ = false;
  std::uint64_t next_ = 1;
};

}  // namespace nsa::parallel
