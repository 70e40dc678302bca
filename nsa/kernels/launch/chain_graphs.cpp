#include "nsa/kernels/launch/chain_graphs.hpp"

#include <algorithm>
#include <utility>

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

ChainGraphs::~ChainGraphs() {
  for (const auto& entry : entries_) runtime_.destroy(entry->graph);
}

void ChainGraphs::run(Chain& chain, cudaStream_t stream) {
  Entry& entry = entry_of(chain, stream);
  if (entry.refused || ++entry.times < kMakeAt) return one_by_one(chain, stream);
  const cudaError_t error = start(entry, chain);
  if (error == cudaSuccess) {
    ++submitted_.graphs;
    return;
  }
  entry.refused = true;
  runtime_.destroy(entry.graph);
  runtime_.forget_error();
  one_by_one(chain, stream);  // throws where it was a kernel that the runtime refused
  ++submitted_.refused;
  submitted_.why = runtime_.describe(error);
}

cudaError_t ChainGraphs::start(Entry& entry, Chain& chain) {
  if (!entry.graph.executable) {
    if (const cudaError_t error = runtime_.make(chain, entry.graph); error != cudaSuccess) return error;
    ++submitted_.made;
  } else {
    for (std::size_t i = 0; i < chain.size(); ++i) {
      if (chain.same_launch(entry.last, i)) continue;
      if (const cudaError_t error = runtime_.set(entry.graph, i, chain[i]); error != cudaSuccess) return error;
      ++submitted_.set;
    }
  }
  const cudaError_t error = runtime_.start(entry.graph, entry.stream);
  if (error == cudaSuccess) std::swap(entry.last, chain);
  return error;
}

void ChainGraphs::one_by_one(const Chain& chain, cudaStream_t stream) {
  ++submitted_.one_by_one;
  for (std::size_t i = 0; i < chain.size(); ++i)
    if (const cudaError_t error = runtime_.launch(chain[i], stream); error != cudaSuccess)
      throw LaunchError(chain.name_of(i) + ": the CUDA runtime refused the launch: " + runtime_.describe(error));
}

ChainGraphs::Entry& ChainGraphs::entry_of(const Chain& chain, cudaStream_t stream) {
  const int device = runtime_.device();
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry->stream == stream && entry->device == device && entry->last.same_shape(chain);
  });
  if (found != entries_.end()) {
    std::rotate(entries_.begin(), found, found + 1);
    return *entries_.front();
  }
  if (entries_.size() == kMost) {
    runtime_.destroy(entries_.back()->graph);
    entries_.pop_back();
  }
  auto entry = std::make_unique<Entry>();
  entry->device = device;
  entry->stream = stream;
  entry->last = chain;
  entries_.insert(entries_.begin(), std::move(entry));
  return *entries_.front();
}

}  // namespace nsa::kernels
