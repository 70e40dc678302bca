// One moment in the life of a rank of the suite `distributed`: what a planted fault may change there. Which pointers
// are set stands at each moment; the others are null.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "nsa/config.hpp"

namespace nsa {
class LanguageModelImpl;
}
namespace nsa::parallel {
class Group;
struct World;
}  // namespace nsa::parallel
namespace nsa::train {
class BatchStream;
struct StepReport;
}  // namespace nsa::train

namespace suites {

// What it tells the others of itself before they train together.
struct RankFacts {
  std::string build;
  double clock_offset_s = 0;        // of its wall clock, as it tells it
  double shared_memory_bytes = -1;  // free in /dev/shm
};

struct RankMoment {
  enum class At {
    launched,    // world, config, facts
    made,        // model, stream: before the ranks compare what they have
    agreed,      // model, stream, group: after it
    stepping,    // model, stream, group, step: before each step
    collective,  // name, tensor: outside of it still, about to make it
    inside,      // name: it has begun
    reduced,     // model: gradients are sums over all ranks; before clipping
    stepped,     // model, report
  };
  At at = At::launched;
  int rank = 0, size = 1;
  std::int64_t step = -1;  // the step that it is in, 0, 1, ...; -1: before the first

  nsa::parallel::World* world = nullptr;
  nsa::TrainConfig* config = nullptr;
  RankFacts* facts = nullptr;
  nsa::LanguageModelImpl* model = nullptr;
  std::shared_ptr<nsa::train::BatchStream>* stream = nullptr;
  nsa::parallel::Group* group = nullptr;
  const std::string* name = nullptr;
  at::Tensor* tensor = nullptr;
  nsa::train::StepReport* report = nullptr;
};

}  // namespace suites
