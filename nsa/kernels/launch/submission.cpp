#include "nsa/kernels/launch/submission.hpp"

#include <stdexcept>
#include <string>

namespace nsa::kernels {

namespace {

struct Collecting {
  bool open = false;  // a Submission lives
  bool on = false;    // and launches are collected
  cudaStream_t stream = nullptr;
  ChainGraphs* graphs = nullptr;
  Chain chain;
};
thread_local Collecting collecting;

ChainGraphs& graphs_of_thread() {
  thread_local ChainGraphs graphs(launch_runtime());
  return graphs;
}

}  // namespace

Submission::Submission(cudaStream_t stream, bool wanted) {
  if (wanted && !collecting.open) outermost_ = begin(stream, launch_runtime(), graphs_of_thread());
}

Submission::Submission(cudaStream_t stream, LaunchRuntime& runtime, ChainGraphs& graphs) {
  if (!collecting.open) outermost_ = begin(stream, runtime, graphs);
}

bool Submission::begin(cudaStream_t stream, LaunchRuntime& runtime, ChainGraphs& graphs) {
  if (!runtime.may_collect(stream)) return false;
  collecting.chain.clear();
  collecting.stream = stream;
  collecting.graphs = &graphs;
  collecting.open = collecting.on = true;
  return true;
}

Submission::~Submission() {
  if (outermost_) collecting.open = collecting.on = false;
}

void Submission::submit() {
  if (!outermost_ || !collecting.on) return;
  collecting.on = false;
  if (collecting.chain.size() > 0) collecting.graphs->run(collecting.chain, collecting.stream);
}

void put_on(cudaStream_t stream, const LaunchCall& call) {
  if (collecting.on && (stream != collecting.stream || collecting.chain.size() == Submission::kLongest))
    end_collecting();
  if (collecting.on)
    collecting.chain.add(call);
  else
    static_cast<void>(launch_runtime().launch(call, stream));  // check_launch() asks
}

void end_collecting() {
  if (!collecting.on) return;
  collecting.on = false;
  if (collecting.chain.size() > 0) collecting.graphs->one_by_one(collecting.chain, collecting.stream);
}

bool name_collected(const char* kernel) {
  if (!collecting.on) return false;
  if (!collecting.chain.name(kernel))
    throw std::logic_error(std::string(kernel) + ": was not launched by put_on(), and so runs before what it follows");
  return true;
}

const Submitted& submitted() { return graphs_of_thread().submitted(); }

}  // namespace nsa::kernels
