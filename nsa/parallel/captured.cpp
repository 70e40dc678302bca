// A group whose sums a CUDA graph holds. They are given to NCCL itself (backend.cpp), by torch's function over it and
// with c10d's communicator, because c10d's sums in place alone. What is relied on:
//   - a sum goes to the caller's current stream, and nothing is forked or joined. Which stream that is, is the caller's
//     affair: GradientBuckets takes one of its own, which has waited for the captured one (so it belongs to the
//     capture), and joins it. The thread is then autograd's: a capture of cudaStreamCaptureModeThreadLocal forbids
//     nothing to other threads;
//   - c10d knows nothing of it: neither its thread that watches nor the flight recorder asks for an event that was
//     recorded in a graph;
//   - memory: what autograd made is read on the other stream, so it is held until the streams have joined, and then on
//     until the next step, so that the update does not use it again: whose gradient was not finite is read from it. The
//     buckets live longer than the graph, and were allocated outside of it. So nothing needs record_stream.
// And of NCCL 2.28.9, by its source:
//   - the communicator exists before (join() makes it), and the very same sums have been made before (the steps that
//     warm up): so it connects nothing in the capture. It may still register buffers: for NVLS it waits for the other
//     ranks then (transport/nvls.cc), for copies between GPUs it asks their proxy threads (transport/p2p.cc). So a rank
//     captures its own part alone first, and all say whether they could. Of a sum in a ring it is the tensor of the
//     sums that may be registered, where that is not the own one (register/coll_reg.cc), and what cudaMalloc gave is so
//     with NCCL_LEGACY_CUDA_REGISTER=1 alone (transport/p2p.cc). The ranks then write into each other's: no sooner than
//     the other's kernel has told its address (device/prims_simple.h);
//   - the sums between ncclGroupStart and ncclGroupEnd are one kernel. How each is made is decided by the size of all
//     of them (ncclPrepareTasks in enqueue.cc);
//   - sums of one graph and communicator run one after another, whatever stream each is given (misc/strongstream.cc);
//   - a communicator is not destroyed, and its abort does not return, while a graph with its sums exists
//     (commDestroySync in init.cc). The waiting kernels end all the same, as the abort tells them first.
// Of a sum that was aborted nothing is relied on: it may have added what its buffers held of an earlier one. So what is
// told with a captured step is another number in each (GraphStep::told_).
#include <fmt/format.h>

#include <future>
#include <stdexcept>

#include "nsa/parallel/inside.hpp"

namespace nsa::parallel {

namespace {

// A backend whose abort ends the graphs too. For abort() alone: the group sums by its own backend.
class EndsGraphsToo : public c10d::Backend {
 public:
  explicit EndsGraphsToo(c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}

  void set(std::function<void()> let_go) {
    const std::lock_guard<std::mutex> lock(mutex_);
    let_go_ = std::move(let_go);
  }
  const std::string getBackendName() const override { return inner_->getBackendName(); }
  // Both at once: the abort ends the kernels and then waits for the graphs, whose end may wait for that of the kernels.
  void abort() override {
    const auto graphs = std::async(std::launch::async, [this] {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (let_go_) let_go_();
    });
    inner_->abort();
    graphs.wait();
  }

 private:
  c10::intrusive_ptr<c10d::Backend> inner_;
  std::mutex mutex_;
  std::function<void()> let_go_;
};

}  // namespace

void Group::sum_unrecorded(const std::vector<at::Tensor>& own, const std::vector<at::Tensor>& sums) {
  if (!inside_->processes.sum_unrecorded)
    throw std::logic_error(fmt::format("a sum that is not recorded, over {}", backend()));
  inside_->processes.sum_unrecorded(own, sums);
}

void Group::note_all_ended() { inside_->ring.look(inside_->now_s()); }

std::uint64_t Group::begin_replay(std::string_view name, std::int64_t elements, std::string_view dtype) {
  Inside& in = *inside_;
  in.throw_if_troubled();
  if (in.options.phase) in.options.phase(name);
  const std::uint64_t sequence = in.ring.begin(name, elements, std::string(dtype), in.now_s());
  if (in.options.seams.inside) in.options.seams.inside(std::string(name));
  return sequence;
}

void Group::replay_given(std::uint64_t sequence, std::function<bool()> done) {
  inside_->ring.waits(sequence, true);
  inside_->ring.ends_when(sequence, std::move(done));
}

void Group::on_abort(std::function<void()> let_go) {
  auto& backend = inside_->processes.backend;
  auto* wrapped = dynamic_cast<EndsGraphsToo*>(backend.get());
  if (wrapped == nullptr) {
    auto made = c10::make_intrusive<EndsGraphsToo>(backend);
    wrapped = made.get();
    backend = made;
  }
  wrapped->set(std::move(let_go));
}

bool Group::troubled() const { return inside_->trouble().has_value(); }

}  // namespace nsa::parallel
