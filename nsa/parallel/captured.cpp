// A group whose sums a CUDA graph holds. What is relied on, of torch 2.11's ProcessGroupNCCL::collective (by its
// header, and by excerpts of a ProcessGroupNCCL.cpp near that version, not by the whole file):
//   - with asyncOp = false the sum goes to the caller's current stream, and it asks that stream whether it is captured:
//     c10d forks nothing and joins nothing. Which stream that is, is the caller's affair: GradientBuckets takes one of
//     its own, which has waited for the captured one (so it belongs to the capture), and joins it. The thread is then
//     autograd's: a capture of cudaStreamCaptureModeThreadLocal forbids nothing to other threads;
//   - in a capture the work is not given to c10d's thread that watches, nor to the flight recorder: nobody asks for an
//     event that was recorded in a graph;
//   - memory: what autograd made is read on the other stream, so it is held until the streams have joined; the buckets
//     live longer than the graph, and were allocated outside of it. So nothing needs record_stream.
// And of NCCL 2.28.9, by its source:
//   - the communicator exists before (join() makes it), and a sum of this size has been made before (the steps that
//     warm up): so it connects nothing in the capture. It may still register buffers: for NVLS it waits for the other
//     ranks then (transport/nvls.cc), for copies between GPUs it asks their proxy threads (transport/p2p.cc). So a rank
//     captures its own part alone first, and all say whether they could;
//   - sums of one graph and communicator run one after another, whatever stream each is given (misc/strongstream.cc);
//   - a communicator is not destroyed, and its abort does not return, while a graph with its sums exists
//     (commDestroySync in init.cc). The waiting kernels end all the same, as the abort tells them first.
// Of a sum that was aborted nothing is relied on: it may have added what its buffers held of an earlier one. So what is
// told with a captured step is another number in each (GraphStep::told_).
#include <future>

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

void Group::sum_in_graph(at::Tensor& tensor) {
  std::vector<at::Tensor> tensors = {tensor};
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  (void)inside_->processes.group->allreduce(tensors, options);
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
