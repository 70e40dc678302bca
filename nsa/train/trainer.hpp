// A training loop with guards: AdamW, linear warm-up and cosine, global-norm clipping, and a stop before the update
// when the loss or any gradient is not finite. Its state can be taken out between two steps and put into another
// trainer, which then goes on bit for bit as this one would.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/config.hpp"
#include "nsa/model/lm.hpp"
#include "nsa/parallel/gradient_sums.hpp"
#include "nsa/parallel/handshake.hpp"
#include "nsa/train/adamw.hpp"
#include "nsa/train/batch.hpp"
#include "nsa/train/divergence.hpp"
#include "nsa/train/graph_step.hpp"
#include "nsa/train/state.hpp"
#include "nsa/train/text.hpp"

namespace nsa::train {

// Learning rate of optimizer step `step` (0, 1, ...): (step+1)/warmup * lr while step < warmup, then cosine from
// lr to lr_min at step = steps - 1 (a cosine of a single step is made at lr; beyond the last step lr_min).
// Closed form, no state.
[[nodiscard]] double learning_rate(const TrainConfig& config, std::int64_t step);

enum class Stop { none, nonfinite_loss, nonfinite_gradient, diverged, end_of_data, halted };
[[nodiscard]] std::string_view to_string(Stop stop);

struct StepReport {
  std::int64_t step = 0;  // 0, 1, ...
  double loss = 0;        // mean over all predictions of the step, not divided by anything else
  double lr = 0;
  double grad_norm = 0;      // before clipping, computed before the gradients are cleared
  double seconds = 0;        // wall time of the step, data included, device synchronised
  double fetch_seconds = 0;  // of it, waiting for data
  std::int64_t tokens = 0;   // predictions made
  bool replayed = false;     // as a replay of the captured graph
  double wait_seconds = 0;   // of a replay: the host had nothing to do but wait for the device
  Stop stop = Stop::none;    // when not none, no update was made in this step
  std::string anomaly;       // the parameter whose gradient is not finite, or the reason of the stop
  // After a stop for a value that is not finite: the first parameter, in the order of registration, that is not finite
  // or, when all are, whose gradient is not; "" when there is none.
  std::string parameter;
  // With several ranks, after such a stop: the first whose own share was not finite; -1 when all were (their sum is
  // not).
  int rank = -1;
};

// Yields [batch, seq_len + 1] int64 tokens on the CPU, or an empty tensor at the end of the data.
using BatchSource = std::function<torch::Tensor()>;

// The data cannot be read: what the stream said.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Trainer {
 public:
  // Casts the model to config.precision, sets Runtime::recompute from config.gradient_checkpointing, and trains it
  // where it is. Stops with Stop::halted before a step when `halt_file` (if given) exists, and with Stop::diverged when
  // the steps before it tell so (DivergenceGuard, config.stop_on_divergence).
  //
  // Where goes_by_graph() says so, a step goes by GraphStep: on a GPU as a replay of a graph, elsewhere one operation
  // after another. Not so the steps that a graph cannot hold: those that Runtime::observe watches, and the smaller
  // batches at the end of the data. With CudaGraph::on what no graph can hold is refused (std::invalid_argument with
  // graph_refusal's reason; Unsupported in a step); with `automatic` such steps are ordinary ones (why_not_captured).
  Trainer(LanguageModel model, TrainConfig config, BatchSource batches,
          std::optional<std::filesystem::path> halt_file = std::nullopt);
  // The same from a stream, whose position is part of the state; at the end of the data its batches may be smaller.
  Trainer(LanguageModel model, TrainConfig config, std::shared_ptr<BatchStream> stream,
          std::optional<std::filesystem::path> halt_file = std::nullopt);
  // With the ranks of a group, each of which has a trainer of the same model, configuration and stream: a step is that
  // of all (deal.hpp), and so are all figures of its report. All ranks make the same calls, and watch their steps
  // (Runtime::observe) all or none. Steps go by the graph as those of one rank do, on all ranks or on none. Throws
  // parallel::Error where the ranks do not agree or one is lost.
  Trainer(LanguageModel model, TrainConfig config, std::shared_ptr<BatchStream> stream,
          std::optional<std::filesystem::path> halt_file, std::shared_ptr<parallel::Group> group);
  Trainer(const Trainer&) = delete;  // its graph holds the optimizer's tensors
  Trainer& operator=(const Trainer&) = delete;

  // One optimizer step. After a stop the parameters are bit for bit what they were, the stream and torch's generators
  // stand where they stood, and the same step may be tried again. Throws ContractError for a batch of the wrong shape,
  // dtype or device and for a token outside the vocabulary, DataError when the stream throws std::runtime_error.
  //
  // `goes_on`: the caller will call step() again, and look at neither weights nor state() before. Then the next step
  // may have begun when this one is reported, where both are replays of the captured graph (GraphStep, Note [One step
  // ahead]); is_ahead() says so. The reports are the same. A divergence is noticed a step later, and what the next step
  // throws is thrown by its own call. The same on all ranks.
  StepReport step(bool goes_on = false);
  [[nodiscard]] bool is_ahead() const { return ahead_ && ahead_->begun; }
  // Up to config.steps reports; ends early after a stop. `each` is called after every step.
  std::vector<StepReport> run(const std::function<void(const StepReport&)>& each = {});

  [[nodiscard]] std::int64_t steps_made() const { return steps_made_; }
  [[nodiscard]] double last_loss() const { return last_loss_.value_or(0); }  // of the last step made
  // Predictions made, and seconds spent, in all steps since the first, those before a resume included.
  [[nodiscard]] std::int64_t tokens_seen() const { return tokens_seen_; }
  [[nodiscard]] double seconds_spent() const { return seconds_spent_; }
  // Why the next step will be a Stop::diverged; nothing when it will not.
  [[nodiscard]] std::optional<std::string> diverged() const;
  [[nodiscard]] const DivergenceGuard& divergence() const { return divergence_; }
  [[nodiscard]] bool by_graph() const { return graph_ != nullptr; }
  [[nodiscard]] std::int64_t graph_replays() const { return graph_ ? graph_->replays() : 0; }
  // Why CudaGraph::automatic has come to nothing on a GPU; "" where it has not.
  [[nodiscard]] const std::string& why_not_captured() const { return why_not_captured_; }
  // As of the last step that was made, whatever was tried since. Throws std::logic_error when an update was cut off by
  // an exception: then no such state exists any more; and while is_ahead().
  [[nodiscard]] TrainState state() const;
  // Throws StateMismatch naming every key, tensor and property of the data that differs, and then changes nothing.
  void load(const TrainState& state);

  // With a group. What this rank wants of all (to stop, say), asked at the end of a step's backward (before a step that
  // goes by the graph) and summed over all ranks with its figures: so all ranks learn of it with the same step.
  // wishes(): of the last step.
  using Wishes = train::Wishes;
  void on_wish(std::function<Wishes()> ask) { ask_wishes_ = std::move(ask); }
  [[nodiscard]] const Wishes& wishes() const { return wishes_; }
  [[nodiscard]] const std::shared_ptr<parallel::Group>& group() const { return group_; }  // null: alone
  // Of the last step; zeros without a group, and of a step of GraphStep, in which nobody takes times.
  [[nodiscard]] parallel::GradientSums::Overlap overlap() const;
  // What all ranks must have in common before a step; throws parallel::Disagreement where they have not.
  void compare_with_all(const parallel::Facts& more = {});
  // The parameters, bit for bit; throws parallel::Disagreement.
  void compare_weights_with_all();

  // Called at the beginning of each part of a step: "fetch", "forward", "backward", "update"; of a replayed
  // one: "fetch", "replay".
  void on_phase(std::function<void(std::string_view)> tell) { tell_phase_ = std::move(tell); }

 private:
  // What a step that is not made must give back.
  struct Origin {
    nlohmann::json data;
    std::map<std::string, torch::Tensor> random;
  };

  // The next step, as far as it was taken while the one before was under way.
  struct Ahead {
    Origin origin;  // before it
    StepReport report;
    std::vector<Batch> batches;
    bool begun = false;
    std::exception_ptr failed;  // on the way
  };

  void guarded_step(StepReport& report, bool goes_on);
  // Why no step is begun; none when nothing speaks against it.
  [[nodiscard]] std::optional<std::pair<Stop, std::string>> refused() const;
  [[nodiscard]] bool graph_serves(const std::vector<Batch>& batches) const;
  void begin_ahead();
  [[nodiscard]] Wishes wishes_of_this_rank() const;
  // The batches of a step, fewer than asked for at the end of the data.
  std::vector<Batch> fetch(StepReport& report);
  // {loss, norm, ...} by the graph; undefined when it could not hold the step and was given up (CudaGraph::automatic).
  at::Tensor step_by_graph(const std::vector<Batch>& batches, StepReport& report, bool begun, bool goes_on);
  // Loss and gradients of all batches, weighted by their predictions; "" or what autograd's anomaly mode found.
  // With a group: of this rank's share, and summed.
  std::string accumulate(const std::vector<Batch>& batches, const StepReport& report, torch::Tensor& loss);
  void join_group();
  // The mean loss, the norm and what autograd's anomaly mode found, of all ranks.
  at::Tensor figures_of_all(const at::Tensor& loss, const std::string& found_by_autograd);
  void note_sums(const Wishes& wishes);  // of a step of all
  // Whose share is not finite.
  void find_culprit(StepReport& report);
  [[nodiscard]] std::vector<Batch> own_share(const std::vector<Batch>& batches) const;
  [[nodiscard]] Origin origin() const;
  void forget_gradients();
  void phase(std::string_view name);

  LanguageModel model_;
  TrainConfig config_;
  std::function<Batch()> next_batch_;
  std::shared_ptr<BatchStream> stream_;  // null with a BatchSource
  std::optional<std::filesystem::path> halt_file_;
  // Found once: to walk the tree of modules in every step takes the host as long as a small model's step the GPU.
  std::vector<torch::Tensor> parameters_;
  torch::Device device_;
  AdamW optimizer_;
  std::shared_ptr<parallel::Group> group_;        // null: alone
  std::unique_ptr<parallel::GradientSums> sums_;  // with a group
  std::function<Wishes()> ask_wishes_;
  Wishes wishes_{};
  at::Tensor own_loss_;  // of the step, before the sum, and what autograd found in it
  std::string own_found_by_autograd_;
  bool first_step_checked_ = false;  // the signatures of a whole step's collectives were the same on all ranks
  std::string why_not_captured_;
  std::unique_ptr<GraphStep> graph_;  // null: every step is an ordinary one
  std::function<void(std::string_view)> tell_phase_;
  DivergenceGuard divergence_;
  std::int64_t steps_made_ = 0, tokens_seen_ = 0;
  double seconds_spent_ = 0;
  std::optional<double> last_loss_;
  Origin origin_;  // of the next step
  std::optional<Ahead> ahead_;
  bool updating_ = false;  // an update, or a replay, began and did not end
  bool by_graph_ = false;  // the last step
};

}  // namespace nsa::train
