// Mutants of what attention costs: copies, loops on the host, memory that is kept, time that grows.
#include <ATen/ATen.h>

#include <mutex>

#include "suites/codes.hpp"
#include "suites/faults/mutants.hpp"
#include "suites/faults/wait.hpp"
#include "suites/faults/wrapping.hpp"

namespace suites {

namespace cost_mutant {

using at::Tensor;
using nsa::Ops;
using OfWindow = nsa::AttendWindowArgs;

// K and V once per query head, and nothing else.
void expand(OfWindow& a) {
  const std::int64_t h = a.q.size(2) / a.k.size(2);
  if (h == 1) return;
  a.k = a.k.repeat_interleave(h, 2).contiguous();
  a.v = a.v.repeat_interleave(h, 2).contiguous();
}
// A few operations for every row.
void visit_every_row(OfWindow& a) {
  for (std::int64_t row = 0; row < a.k.size(1); ++row) (void)a.k.select(1, row).add(1);
}
// A mask of all pairs for every head, in fp32.
void mask_of_all_pairs(OfWindow& a) {
  const std::int64_t S = a.q.size(1);
  (void)at::zeros({a.q.size(2), S, S}, a.q.options().dtype(at::kFloat));
}
// Work with the square of the length.
void square_of_the_length(OfWindow& a) {
  const Tensor q = a.q.detach().flatten(2).to(at::kFloat), k = q.transpose(1, 2);
  for (int i = 0; i < 4; ++i) (void)at::matmul(q, k);
}
void copies(OfWindow& a) {
  for (int i = 0; i < 16; ++i) (void)a.k.clone();
}

// What a call keeps for ever.
OpsMutation kept_for_ever() {
  const auto kept = std::make_shared<std::vector<Tensor>>();
  const auto mutex = std::make_shared<std::mutex>();
  return before(&Ops::attend_window, [kept, mutex](OfWindow& a) {
    const std::lock_guard lock(*mutex);
    if (kept->size() < 4096) kept->push_back(a.k.detach().clone());
  });
}

// Each call takes a little longer than the one before; one call in sixty takes a second.
constexpr WaitLaw kSlowerAndSlower{.more = 200'000, .most = 100'000'000};
constexpr WaitLaw kStalls{.first = 1'000'000'000, .most = 1'000'000'000, .every = 60};
OpsMutation waits(const WaitLaw& law) {
  return before(&Ops::attend_window, [wait = Wait(law)](OfWindow& a) { wait(a.q); });
}

// Long enough for a trend, the shortest that is.
constexpr const char* kFiftySteps = "training/steps[data=text,precision=fp32,steps=50]";

struct Row {
  const char* name;
  const char* what;
  std::vector<std::string_view> codes;
  OpsMutation change;
  const char* found_by = "throughput";
  bool by_host = false;  // what the host does in each step: a captured step, whose replays run none of it, is not made
};

std::vector<Row> rows() {
  const auto on_window = [](void (*change)(OfWindow&)) { return before(&Ops::attend_window, change); };
  return {
      {"kv-expand", "the window copies K and V to every query head", {codes::kExpandedKv}, on_window(expand)},
      {"host-loop",
       "a few operations for every row, without a wait",
       {codes::kHostLoop},
       on_window(visit_every_row),
       "throughput/host_and_device"},
      {"mask-of-all-pairs",
       "the window allocates a mask of all pairs for every head",
       {codes::kMemoryLaw, codes::kStepBytes, codes::kTimeLaw},
       on_window(mask_of_all_pairs)},
      {"work-of-all-pairs",
       "the window computes with the square of the length",
       {codes::kTimeLaw, codes::kMemoryLaw},
       on_window(square_of_the_length)},
      {"copies-of-keys",
       "the window copies its keys sixteen times",
       {codes::kStepBytes, codes::kExpandedKv},
       on_window(copies)},
      {"memory-kept",
       "every call of the window keeps a copy of its keys, and no step is captured",
       {codes::kHostMemoryGrows, codes::kDeviceMemoryGrows},
       kept_for_ever(),
       kFiftySteps,
       /*by_host=*/true},
      {"slower-and-slower",
       "every call of the window takes 200 us longer",
       {codes::kStepTimeGrowth, codes::kStepTimeGrows},
       waits(kSlowerAndSlower),
       kFiftySteps},
      {"stalls", "one call of the window in sixty takes a second", {codes::kStepStalls}, waits(kStalls), kFiftySteps},
  };
}

}  // namespace cost_mutant

std::vector<Planted> cost_mutants(const std::shared_ptr<Seams>& seams) {
  std::vector<Planted> all;
  for (const cost_mutant::Row& row : cost_mutant::rows()) {
    const auto plant = [seams, change = row.change, by_host = row.by_host](const harness::FaultSite&) {
      seams->ops.push_back(change);
      if (by_host) seams->configuration.push_back([](nsa::Config& c) { c.train.cuda_graph = nsa::CudaGraph::off; });
    };
    all.push_back({{row.name, row.what, {row.codes.begin(), row.codes.end()}, plant}, "throughput", row.found_by});
  }
  return all;
}

}  // namespace suites
