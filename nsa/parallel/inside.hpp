// A group's insides: c10d's objects, the ring of collectives, and the thread that watches. Not for others than
// nsa/parallel's sources.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.hpp"
#include "nsa/parallel/backend.hpp"
#include "nsa/parallel/diagnosis.hpp"
#include "nsa/parallel/group.hpp"
#include "nsa/parallel/meeting.hpp"
#include "nsa/parallel/patient.hpp"
#include "nsa/parallel/ring.hpp"

namespace nsa::parallel {

struct Group::Inside {
  explicit Inside(const GroupOptions& options);
  ~Inside();

  using Clock = std::chrono::steady_clock;
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;

  struct Begun {
    Future future;  // holds the tensor; of a GPU's work: complete when the work was given to it
    c10::intrusive_ptr<c10d::Work> work;
  };
  // A sum that goes on when this returns. Throws as Group::sum.
  Begun begin_sum(at::Tensor& tensor, const std::string& name);
  // Until a GPU has done it. The thread that trains waits here for the others, and not in a copy to the CPU: there the
  // driver holds a lock that other calls of other threads need, among them those that break the collective off.
  void await_gpu(c10d::Work& work);
  // Something else of c10d's that all ranks do together.
  void recorded(const std::string& name, const std::function<void()>& collective);
  [[nodiscard]] double now_s() const { return base::seconds_since(began); }

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
  [[nodiscard]] RankState my_state();
  // Where all ranks answer, and what they said.
  [[nodiscard]] std::vector<std::string> await_answers(c10d::Store& store, std::chrono::milliseconds longest);
  [[nodiscard]] std::vector<RankState> states(std::chrono::milliseconds longest);
  [[noreturn]] void fail(bool timed_out, const std::string& told);  // in the collective that is open
  [[noreturn]] void throw_store_is_lost(const CollectiveRecord& record, double seconds, const std::string& told);
  void throw_if_troubled();
  void throw_their_diagnosis();
  void end_if_stuck();
  void end_by_force(const std::string& what);  // this rank, which cannot end by itself
  void look_at_gpu();                          // what it has done, if it tells at once
  [[nodiscard]] std::string flight();          // what NCCL's flight recorder has, if it tells
  void let_all_answer();                       // before what they would say is changed by a rank that breaks off
  // Lets go whoever waits for the GPU: what it was given is broken off. Returns when that is so; ends the process where
  // it is not within kToBreakOff (or timeout, if that is shorter).
  void break_off();

  GroupOptions options;
  Meeting meeting;
  Processes processes;
  std::shared_ptr<Ring> own_ring = std::make_shared<Ring>();  // of `gpu` too
  Ring& ring = *own_ring;
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
  std::once_flag broken_off;
  // Held while the backend is given something: a communicator must not go meanwhile. Of `breaker` too.
  std::shared_ptr<std::timed_mutex> giving = std::make_shared<std::timed_mutex>();
  // Whoever asks a GPU's driver may stand still there: neither the thread that trains nor the one that watches does.
  Patient gpu, breaker;
  std::thread watcher;
};

}  // namespace nsa::parallel
