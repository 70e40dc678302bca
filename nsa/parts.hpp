// What ran of the parts that are no function of the ops table (norms, projections, MLP, embedding, update), and why:
// beside Dispatcher::routes_taken(), and in the same form.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "nsa/route.hpp"

namespace nsa {

struct PartTaken {
  std::string part;  // "norm", "project", "decode", "mlp", "silu", "embedding", "update"
  std::string way;   // "cuda": our own kernels; "joined": ATen's functions as one node of autograd; "aten"
  std::string why;   // in words: what was asked for, or what refuses it
  std::int64_t calls = 1;
  std::string kernel = {};  // which of several, as its plan calls it
};
// Its fields as JSON, of whichever library type, named as those of Taken (route.hpp).
template <typename Json>
void to_json(Json& json, const PartTaken& taken) {
  std::vector<Launched> kernels;
  if (!taken.kernel.empty()) kernels.push_back({.kernel = taken.kernel});
  json = {{"op", taken.part}, {"backend", taken.way}, {"variant", ""},
          {"why", taken.why}, {"calls", taken.calls}, {"kernels", kernels}};
}

// Thread-safe.
class PartRecord {
 public:
  void add(const PartTaken& taken);  // its calls, to those of the same part, way, reason and kernel
  [[nodiscard]] std::vector<PartTaken> taken() const;

 private:
  mutable std::mutex mutex_;
  std::vector<PartTaken> taken_;  // few
};

}  // namespace nsa
