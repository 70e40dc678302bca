// A group's insides: c10d's objects, the ring of collectives, and the thread that watches. Not for others than
// nsa/parallel's sources.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "nsa/parallel/backend.hpp"
#include "nsa/parallel/diagnosis.hpp"
#include "nsa/parallel/group.hpp"
#include "nsa/parallel/meeting.hpp"
#include "nsa/parallel/ring.hpp"

namespace nsa::parallel {

struct Group::Inside {
  explicit Inside(const GroupOptions& options);
  ~Inside();

  using Clock = std::chrono::steady_clock;
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;

  // A sum that goes on when this returns; its future holds the tensor. Throws as Group::sum.
  Future begin_sum(at::Tensor& tensor, const std::string& name);
  // Something else of c10d's that all ranks do together.
  void recorded(const std::string& name, const std::function<void()>& collective);
  [[nodiscard]] double now_s() const { return std::chrono::duration<double>(Clock::now() - began).count(); }

  // collective.cpp
  void compare_signature(std::uint64_t sequence, const std::string& signature);
  [[nodiscard]] std::vector<std::string> await_all(const std::string& key);

  // watch.cpp: the thread that watches
  void watch();
  void look();                                           // once
  void learn(const Trouble& trouble);                    // the first that is known here stays
  void answer();                                         // with this rank's state, once
  [[nodiscard]] std::optional<Trouble> trouble() const;  // that is known here
  void declare(const Trouble& trouble) noexcept;         // for all, unless another was first
  [[nodiscard]] RankState my_state() const;
  [[nodiscard]] std::vector<RankState> states(std::chrono::milliseconds longest);  // of all ranks
  [[noreturn]] void fail(bool timed_out, const std::string& told);                 // in the collective that is open
  [[noreturn]] void throw_store_is_lost(const CollectiveRecord& record, double seconds, const std::string& told);
  void throw_if_troubled();
  void throw_their_diagnosis();
  void end_if_stuck();

  GroupOptions options;
  Meeting meeting;
  Processes processes;
  Ring ring;
  Clock::time_point began;
  std::atomic<bool> checking{true};
  std::map<std::string, std::uint64_t> gatherings;  // by key: how many there were

  mutable std::mutex mutex;
  std::condition_variable wake;
  bool over = false;
  std::atomic<bool> store_lost{false};    // its server has closed the connection
  std::atomic<bool> store_silent{false};  // or does not answer
  std::optional<Trouble> known;
  Clock::time_point known_since;
  bool answered = false;
  bool faced = false;  // the thread that trains has been told
  std::thread watcher;
};

}  // namespace nsa::parallel
