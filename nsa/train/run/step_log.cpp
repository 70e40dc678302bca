#include "nsa/train/run/step_log.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <numbers>

#include "base/statistics.hpp"

namespace nsa::train {

namespace {

Window summary(const std::vector<StepReport>& reports) {
  double seconds = 0, tokens = 0;
  std::vector<double> fetch_ms;
  for (const auto& report : reports) {
    seconds += report.seconds;
    tokens += static_cast<double>(report.tokens);
    fetch_ms.push_back(1e3 * report.fetch_seconds);
  }
  return {tokens / seconds, seconds / static_cast<double>(reports.size()), base::nearest_rank(fetch_ms, 0.5),
          base::nearest_rank(fetch_ms, 0.95)};
}

}  // namespace

StepLog::StepLog(const std::filesystem::path& folder, std::int64_t last_step, bool with_validation,
                 const StepTable::Tell& tell)
    : metrics_(folder / "metrics.csv",
               {"loss", "lr", "grad_norm", "tok_per_s", "step_s", "fetch_p50_ms", "fetch_p95_ms", "tokens", "seconds",
                "validation_loss"},
               last_step, tell) {
  if (last_step > 0 && metrics_.was_empty() && tell)  // the first step has a row whatever is logged
    tell(fmt::format("{} has no rows, though {} steps are made: it was emptied or removed, and their figures are lost",
                     (folder / "metrics.csv").string(), last_step));
  if (with_validation)
    validation_.emplace(folder / "validation.csv",
                        std::vector<std::string>{"loss", "perplexity", "bits_per_token", "tokens", "seconds"},
                        last_step, tell);
}

void StepLog::step(const StepReport& report) { window_.push_back(report); }

Window StepLog::row(const SoFar& sofar) {
  const StepReport& last = window_.back();
  const Window window = summary(window_);
  const std::array<std::optional<double>, 10> values = {last.loss,           last.lr,
                                                        last.grad_norm,      window.tok_per_s,
                                                        window.step_s,       window.fetch_p50_ms,
                                                        window.fetch_p95_ms, static_cast<double>(sofar.tokens),
                                                        sofar.seconds,       validation_loss_};
  metrics_.append(last.step + 1, values);
  window_.clear();
  validation_loss_.reset();
  return window;
}

void StepLog::validation(std::int64_t step, const Evaluation& evaluation, double seconds) {
  const std::array<std::optional<double>, 5> values = {evaluation.loss, std::exp(evaluation.loss),
                                                       evaluation.loss / std::numbers::ln2,
                                                       static_cast<double>(evaluation.tokens), seconds};
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): throws where the run has no validation
  validation_.value().append(step, values);
  validation_loss_ = evaluation.loss;
}

void StepLog::sync() {
  metrics_.sync();
  if (validation_) validation_->sync();
}

void StepLog::check() const {
  metrics_.check();
  if (validation_) validation_->check();
}

}  // namespace nsa::train
