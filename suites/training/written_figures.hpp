// Within the verdicts of written_down: which steps stand in which file, the figures of every step as a twin computes
// them, and what the files have told of its losses so far.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "suites/training/claims.hpp"
#include "suites/training/run_twin.hpp"
#include "suites/training/told_files.hpp"
#include "suites/training/written_down.hpp"

namespace suites::training_cases {

// By the words of nsa/train/run/README.md. Steps are counted from 1.
class WrittenSteps {
 public:
  explicit WrittenSteps(const WrittenRun& run);

  [[nodiscard]] std::int64_t last() const { return last_; }
  [[nodiscard]] bool ends_a_start(std::int64_t step) const { return step == cut_ || step == last_; }
  [[nodiscard]] bool validated(std::int64_t step) const { return step % train_.eval_every == 0; }
  [[nodiscard]] bool saved(std::int64_t step) const { return ends_a_start(step) || step % train_.save_every == 0; }
  [[nodiscard]] bool logged(std::int64_t step) const {
    return step == 1 || ends_a_start(step) || step % train_.log_every == 0 || validated(step);
  }
  [[nodiscard]] std::vector<std::int64_t> all(bool (WrittenSteps::*those)(std::int64_t) const) const;

 private:
  const nsa::TrainConfig& train_;
  std::int64_t cut_, last_;
};

[[nodiscard]] std::string checkpoint_name(std::int64_t step);

struct StepFigures {
  LossOf of;
  double grad_norm = 0, lr = 0;
  std::int64_t tokens = 0;            // predictions since the first step
  LossOf validation;                  // where one was due
  std::vector<double> by_batch = {};  // loss of each accumulated batch
  std::vector<double> validation_by_batch = {};
  GateFigures gates = {};
  std::optional<double> of_one_text = {};  // packed: the loss if a row's documents were one text
};

// How far the twin may be from the run: it computes the same operations, in another order where sums have none.
struct Slack {
  double loss = 0, grad_norm = 0, moments = 0;  // nats; of the norm; of a tensor's norm
};

class Figures {
 public:
  explicit Figures(const WrittenRun& run);

  void add(const StepFigures& figures) { steps_.push_back(figures); }
  [[nodiscard]] const StepFigures* at(std::int64_t step) const;  // null beyond what was added
  [[nodiscard]] const Slack& slack() const { return slack_; }

  // Near what the twin computes, and to the last bit what stands elsewhere. `step` is one that was added.
  void loss(Claims& claims, const std::string& where, std::int64_t step, std::optional<double> told);
  void validation_loss(Claims& claims, const std::string& where, std::int64_t step, std::optional<double> told);
  void norm_and_rate(Claims& claims, const std::string& where, std::int64_t step, std::optional<double> norm,
                     std::optional<double> rate) const;

 private:
  // The mistake that gives a wrong number, in words; "" where none that is known does.
  [[nodiscard]] std::string mistake_in_loss(std::int64_t step, double told) const;
  [[nodiscard]] std::string mistake_in_validation(std::int64_t step, double told) const;
  [[nodiscard]] std::string mistake_in_norm(std::int64_t step, double told) const;

  const nsa::TrainConfig& train_;
  Slack slack_;
  double peak_rate_, positions_;  // positions: of a whole batch
  std::vector<StepFigures> steps_;
  std::map<std::int64_t, double> losses_, validation_losses_;  // as the first file tells them
};

// Fills `figures`; judges the weights between steps, the checkpoints (`claims`), and the losses of packed batches
// (kDocuments, told to `context`).
void judge_steps(const WrittenRun& run, Figures& figures, Claims& claims, harness::Context& context);

// A member of an object; null where there is none.
[[nodiscard]] harness::Json member(const ToldJson& record, const char* key);
[[nodiscard]] std::optional<double> number_in(const ToldJson& record, const char* key);

}  // namespace suites::training_cases
