// Case written_down: what a training run writes down, held against what a witness saw. The seam through which a unit
// test makes a run that lies is the stream; the files it may change between the run and the verdicts.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "harness/context.hpp"
#include "nsa/config.hpp"
#include "suites/training/program_run.hpp"
#include "suites/training/run_witness.hpp"

namespace suites::training_cases {

struct WrittenTrial {
  std::filesystem::path model;                                // configuration file
  std::vector<std::pair<std::string, std::string>> settings;  // keys of it: --set
  at::Device device = at::kCPU;
  std::filesystem::path folder;  // of the run; must not exist
  std::int64_t cut = 3;          // where the first start ends; the second goes on to train.steps
  StreamChange stream = {};      // for tests
};

// What nsa-train is given for the first start of a trial, or for the one that goes on.
[[nodiscard]] std::vector<std::string> arguments_of(const WrittenTrial& trial, bool second);

struct WrittenRun {
  nsa::Config config;  // as the arguments say it
  at::Device device = at::kCPU;
  std::filesystem::path folder;
  std::int64_t cut = 0;
  struct Start {
    std::vector<std::string> arguments;
    ProgramEnd end;
    double seconds = 0;
  };
  std::vector<Start> starts = {};
  std::vector<SeenStep> steps = {};
  std::vector<PlainBatch> unfinished = {};  // read for a step that was not made

  // Both starts ended as they should, after as many steps as they should.
  [[nodiscard]] bool finished() const;
};

// The two starts of a run; the folder stays.
[[nodiscard]] WrittenRun make_written_run(const WrittenTrial& trial, harness::Context& context);

// Both starts end with 0 after the steps that were asked for (kToldOtherwise).
void judge_ends(const WrittenRun& run, harness::Context& context);

// Of what was read, as far as the run came: the rows are those of the data in their order, or each once in an order
// that is another in every pass (kBatchOrder), none comes twice within a pass and neighbours differ (kBatchTwice),
// documents begin where they do (kDocuments); every validation reads the same first batches of its own split
// (kToldOtherwise).
void judge_batches(const WrittenRun& run, harness::Context& context);

// Of a finished run: metrics.csv, validation.csv, heartbeat.jsonl, run.json, dtypes.txt, the checkpoints and the last
// lines agree with each other and with what was seen (kToldOtherwise), and the loss of packed batches is that of their
// documents one by one (kDocuments).
void judge_files(const WrittenRun& run, harness::Context& context);

// Another run, which is asked to stop between two checkpoints, leaves one of its last step (kGuardMissed).
void judge_stop(const WrittenTrial& trial, harness::Context& context);
// And another one, whose rate is far too high, is stopped, and keeps the checkpoints from before (kGuardMissed).
void judge_divergence(const WrittenTrial& trial, harness::Context& context);
// A table of a run that was resumed has these steps in its first column (kGuardMissed).
void judge_rows(const std::filesystem::path& table, const std::vector<std::int64_t>& steps, harness::Context& context);
// Of a finished run, whose folder is used up: nsa-train stops for any .HALT, sets a checkpoint aside in which one
// bit of a tensor is another, goes on from the one before and cuts its tables back to it, and its hash sees the last
// number of a tensor (kGuardMissed).
void judge_refusals(const WrittenTrial& trial, harness::Context& context);

inline constexpr std::int64_t kWrittenSteps = 7;  // of a trial, which saves after the steps 3 (its cut), 5 and 7
// What the cases run. `data` is written to `folder`, which is made.
enum class WrittenData { text, crops, shuffled, packed, paragraphs };
[[nodiscard]] std::string_view to_string(WrittenData data);
// `set`: keys that stand above the model's file.
[[nodiscard]] WrittenTrial written_trial(WrittenData data, const std::filesystem::path& model, at::Device device,
                                         const std::filesystem::path& folder,
                                         const std::vector<nsa::Override>& set = {});

}  // namespace suites::training_cases
