// A run on N ranks beside the same run in one process: what the suite's cases are made of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "harness/context.hpp"
#include "suites/distributed/gradients.hpp"
#include "suites/distributed/rank.hpp"
#include "suites/distributed/ranks.hpp"
#include "suites/subject.hpp"

namespace suites::distributed_ranks {

using harness::Context;

struct Trial {
  int ranks = 2;
  int most_ranks = 0;  // that its order is given to, where more than `ranks` go on with it or are compared with it
  nsa::Precision precision = nsa::Precision::fp64;
  std::int64_t steps = 4;
  std::int64_t rows = 6;        // of a batch
  std::int64_t accumulate = 1;  // batches a step
  // The data: whole batches, then one of fewer rows, then a row that is shorter. What `steps` do not reach is not read.
  std::int64_t whole_batches = 2, left_rows = 4;
};

// A folder below the run's that is gone when this is, but for the records and outputs of ranks after keep().
class TrialFolder {
 public:
  TrialFolder(const Context& context, const std::string& name);
  ~TrialFolder();
  TrialFolder(const TrialFolder&) = delete;
  TrialFolder& operator=(const TrialFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  void keep() { keep_ = true; }

 private:
  std::filesystem::path path_;
  bool keep_ = false;
};

// Whether its ranks have a GPU each, of so many: all that take part, or what they do is not the same.
[[nodiscard]] bool runs_on_gpus(const Trial& trial, int gpus);

// The order for a trial: a small model of the subject's configuration, and a text of its own whose rows all differ.
[[nodiscard]] Order make_order(const Subject& subject, const Context& context, const Trial& trial,
                               const std::filesystem::path& folder);
// In this process, alone. Throws std::runtime_error when it does not come to its end.
struct Alone {
  RankRecord record;
  Tensors tensors;
};
[[nodiscard]] Alone run_alone(const Subject& subject, Order order);

// On its ranks. Findings of how they ended are told, and that none of them is left; nothing where they did not end
// well. Where they did not, and `alone` is given, the rows that they read up to then are compared with it first: ranks
// that read other data come to their ends apart. Skips the case where this build or machine has no backend for it.
[[nodiscard]] std::optional<Records> run_told(Context& context, const Order& order, int ranks, TrialFolder& folder,
                                              const RankRecord* alone = nullptr);

// One check: it holds where nothing is found; else each is told, under its own code.
void tell(Context& context, const std::string& name, const Disagreements& found, std::string_view code,
          TrialFolder& folder);

[[nodiscard]] Tensors read_tensors(const std::filesystem::path& file);

}  // namespace suites::distributed_ranks
