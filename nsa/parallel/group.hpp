// The processes that train together: they meet at a store, and sum tensors over all of them. Gloo on CPUs, NCCL on
// GPUs. Every wait has an end, and every collective is recorded, so that a hang tells who is missing from what.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/parallel/errors.hpp"
#include "nsa/parallel/world.hpp"

namespace nsa::parallel {

struct CollectiveRecord {
  std::uint64_t sequence = 0;  // 1, 2, ...; the same number on all ranks is the same collective
  std::string name;            // "gradients bucket 3", "figures"
  std::int64_t elements = 0;
  std::string dtype;
  double began_s = 0;   // since the group stands
  double ended_s = -1;  // -1: it has not ended
};
[[nodiscard]] std::string describe(const CollectiveRecord& record);

// Where a test may do what must not happen. Called in the thread that makes the collective, on this rank alone.
struct GroupSeams {
  // Before the collective is begun: a rank that hangs here is outside of any. May replace the tensor.
  std::function<void(const std::string& name, at::Tensor& tensor)> before = {};
  // It is begun, and nothing is sent yet.
  std::function<void(const std::string& name)> inside = {};
  // In place of the end of what a GPU was given, also without one; from a thread of the group's.
  std::function<void()> break_off = {};
};

struct GroupOptions {
  World world;
  at::Device device = at::kCPU;
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of the meeting, and of each collective
  // The signature of every collective is compared through the store before it runs, until stop_checking().
  bool check_collectives = true;
  std::function<void(std::string_view)> phase = {};  // told the name of each collective; from any thread
  std::function<void()> alive = {};  // some four times a second while this rank waits for the others, in their time
  std::function<std::string()> doing = {};  // what this rank is at, for the others; from any thread
  // Stacks and last collectives of all ranks that could be asked, after a wait that did not end.
  std::function<void(const std::string& text)> keep = {};
  // When this rank is told of the end of the others and does not come to a collective to be told itself (it hangs
  // outside of any), or its GPU does not let go what it was given. Default: says why on standard error and ends the
  // process: 6 after a wait that did not end, 13 after the loss of another rank.
  std::function<void(const std::string& why)> give_up = {};
  GroupSeams seams = {};
};

class Group {
 public:
  // All ranks meet. From then on a broken pipe is an error and no signal (SIGPIPE, where its action was the default),
  // and options.device, where it is a GPU, is this thread's current one.
  // Throws Unreachable, PortTaken, RankTwice, RankAbsent (names the ranks), NotBuilt.
  [[nodiscard]] static std::shared_ptr<Group> join(const GroupOptions& options);
  ~Group();  // leaves; the others are not told of a failure
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] const GroupOptions& options() const;
  [[nodiscard]] const char* backend() const;  // "gloo", "nccl"

  // The sum over all ranks, in place, which has ended when this returns, on a GPU too; what was given to the GPU before
  // it has then ended as well. Throws Timeout, PeerDied, Disagreement.
  void sum(at::Tensor& tensor, std::string_view name);
  // A text of every rank, in their order, through the store. `key` may be used again: each time is another gathering.
  [[nodiscard]] std::vector<std::string> gather(const std::string& key, const std::string& mine);
  // The same signatures were seen: they are compared no longer (unless options().check_collectives is asked for good).
  void stop_checking();

  // ---- a step that a CUDA graph holds, its sums among the rest (captured.cpp)
  // own[i] over all ranks into sums[i], in one launch on the current stream: while this rank captures, as a part of the
  // graph, and nothing is sent; before, to try the same. Contiguous; the two may be the same tensor. It is in no
  // record, and nobody watches it: another sum must come behind it. All ranks give the same in the same order, in a
  // group that has summed before. Throws what torch's functions over NCCL throw.
  void sum_unrecorded(const std::vector<at::Tensor>& own, const std::vector<at::Tensor>& sums);
  // Before a capture, when all that the GPU was given has ended: from then on the thread that watches has nothing to
  // ask the GPU for.
  void note_all_ended();
  // All that a replay sums is recorded as one collective with a number of its own: begun before the replay is launched,
  // given to the GPU after it. `done` is asked by the thread that watches. Throws as check().
  [[nodiscard]] std::uint64_t begin_replay(std::string_view name, std::int64_t elements, std::string_view dtype);
  void replay_given(std::uint64_t sequence, std::function<bool()> done);
  // NCCL's abort does not return while a graph with its sums exists: so `let_go`, which ends all such graphs, is called
  // with it, from any thread. Set before the first replay; an empty one when there are no graphs any more.
  void on_abort(std::function<void()> let_go);
  // Whether check() would throw. The thread that watches has aborted, or is about to, what the GPU waits in.
  [[nodiscard]] bool troubled() const;

  // Why this rank ends, for the others: they end with PeerDied and this sentence.
  void tell_failure(const std::string& why) noexcept;
  // Throws what was found in the background: a rank that told of a failure or that somebody saw die.
  void check();
  // What an exception out of a collective (of c10d, of gloo) means: looks at the other ranks, and throws Timeout,
  // PeerDied or Disagreement. Rethrows one that is no fault of communication.
  [[noreturn]] void explain(const std::exception& error);

  [[nodiscard]] std::vector<CollectiveRecord> collectives() const;  // the last 64, oldest first
  [[nodiscard]] double now_s() const;                               // since the group stands, as in the records

  struct Inside;  // c10d's objects, for gradient_sums.cpp (inside.hpp)
  [[nodiscard]] Inside& inside() { return *inside_; }

 private:
  explicit Group(const GroupOptions& options);
  std::unique_ptr<Inside> inside_;
};

}  // namespace nsa::parallel
