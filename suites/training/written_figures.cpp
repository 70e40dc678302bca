#include "suites/training/written_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "suites/training/verdicts.hpp"

namespace suites::training_cases {

using harness::Json;

namespace {

constexpr double kSameRate = 1e-9;  // of the peak rate

Slack slack_for(const nsa::TrainConfig& train, at::Device device) {
  if (train.precision == nsa::Precision::bf16) return {5e-3, 0.02, 0.03};
  return device.is_cuda() ? Slack{1e-3, 5e-3, 0.02} : Slack{2e-4, 1e-3, 2e-3};
}

// A number that a mistake gives.
struct Candidate {
  double value;
  const char* mistake;
};
// The mistake that gives `told`, where `right` stands. One that gives nearly the right number says nothing.
std::string explanation(const std::vector<Candidate>& all, double told, double right, double slack) {
  for (const Candidate& one : all)
    if (std::abs(told - one.value) <= slack && std::abs(one.value - right) > 2 * slack) return one.mistake;
  return "";
}

// What one file tells is what another has told.
void agree(Claims& claims, const std::string& where, const std::string& what, double told, double elsewhere) {
  claims.equal(where, what + " as it stands elsewhere", reports::number(told), reports::number(elsewhere));
}

}  // namespace

WrittenSteps::WrittenSteps(const WrittenRun& run)
    : train_(run.config.train), cut_(run.cut), last_(static_cast<std::int64_t>(run.steps.size())) {}

std::vector<std::int64_t> WrittenSteps::all(bool (WrittenSteps::*those)(std::int64_t) const) const {
  std::vector<std::int64_t> found;
  for (std::int64_t step = 1; step <= last_; ++step)
    if ((this->*those)(step)) found.push_back(step);
  return found;
}

std::string checkpoint_name(std::int64_t step) { return fmt::format("step_{:08}.safetensors", step); }

Figures::Figures(const WrittenRun& run)
    : train_(run.config.train),
      slack_(slack_for(run.config.train, run.device)),
      peak_rate_(run.config.train.lr),
      positions_(static_cast<double>(run.config.train.batch_size * run.config.train.seq_len)) {}

const StepFigures* Figures::at(std::int64_t step) const {
  const bool known = step >= 1 && step <= static_cast<std::int64_t>(steps_.size());
  return known ? &steps_[static_cast<std::size_t>(step - 1)] : nullptr;
}

void Figures::loss(Claims& claims, const std::string& where, std::int64_t step, std::optional<double> told) {
  if (claims.near(where, "loss", told, at(step)->of.loss, slack_.loss))
    return agree(claims, where, "loss", *told, losses_.emplace(step, *told).first->second);
  const std::string mistake = told ? mistake_in_loss(step, *told) : "";
  if (!mistake.empty()) claims.explain(mistake);
}

std::string Figures::mistake_in_loss(std::int64_t step, double told) const {
  const std::vector<double>& batches = at(step)->by_batch;
  const double sum = std::accumulate(batches.begin(), batches.end(), 0.0);
  std::vector<Candidate> all;
  if (const auto predictions = static_cast<double>(at(step)->of.predictions); predictions > 0)
    all.push_back(
        {sum * positions_ / predictions, "batches weighed by their length, not by their number of predictions"});
  if (const std::optional<double> joined = at(step)->of_one_text)
    all.push_back({*joined,
                   "the documents of a packed row were one text: each sees those before it, and its first "
                   "token is predicted"});
  if (const StepFigures* before = at(step - 1)) all.push_back({before->of.loss, "it were the loss of the step before"});
  if (const StepFigures* after = at(step + 1)) all.push_back({after->of.loss, "it were the loss of the step after"});
  if (batches.size() > 1) {
    all.push_back({sum / static_cast<double>(batches.size()),
                   "accumulated batches weighed the same, whatever number of predictions they have"});
    all.push_back({sum, "the losses of accumulated batches were added and not averaged"});
    all.push_back({batches.back(), "the last of the accumulated batches alone counted"});
    all.push_back({batches.front(), "the first of the accumulated batches alone counted"});
  }
  return explanation(all, told, at(step)->of.loss, slack_.loss);
}

void Figures::validation_loss(Claims& claims, const std::string& where, std::int64_t step, std::optional<double> told) {
  if (claims.near(where, "validation loss", told, at(step)->validation.loss, slack_.loss))
    return agree(claims, where, "validation loss", *told, validation_losses_.emplace(step, *told).first->second);
  const std::string mistake = told ? mistake_in_validation(step, *told) : "";
  if (!mistake.empty()) claims.explain(mistake);
}

std::string Figures::mistake_in_validation(std::int64_t step, double told) const {
  const std::vector<double>& batches = at(step)->validation_by_batch;
  if (batches.empty()) return "";
  const double sum = std::accumulate(batches.begin(), batches.end(), 0.0);
  std::vector<Candidate> all = {
      {sum / static_cast<double>(batches.size()),
       "it were the mean over the batches, which all weigh the same, whatever number of predictions they have"},
      {sum, "the batches' losses were added and not averaged"},
      {batches.back(), "the last batch alone counted"},
      {batches.front(), "the first batch alone counted"}};
  for (std::int64_t before = step - 1; before > 0; --before)
    if (!at(before)->validation_by_batch.empty())
      all.push_back({at(before)->validation.loss, "it were that of an earlier validation"});
  return explanation(all, told, at(step)->validation.loss, slack_.loss);
}

std::string Figures::mistake_in_norm(std::int64_t step, double told) const {
  const double norm = at(step)->grad_norm;
  std::vector<Candidate> all = {{std::min(norm, train_.grad_clip), "it were taken of the gradients after clipping"},
                                {norm * norm, "its root were not taken"}};
  if (const StepFigures* before = at(step - 1)) all.push_back({before->grad_norm, "it were that of the step before"});
  if (const StepFigures* after = at(step + 1)) all.push_back({after->grad_norm, "it were that of the step after"});
  return explanation(all, told, norm, slack_.grad_norm * norm);
}

void Figures::norm_and_rate(Claims& claims, const std::string& where, std::int64_t step, std::optional<double> norm,
                            std::optional<double> rate) const {
  if (!claims.near(where, "grad_norm", norm, at(step)->grad_norm, slack_.grad_norm * at(step)->grad_norm) && norm) {
    const std::string mistake = mistake_in_norm(step, *norm);
    if (!mistake.empty()) claims.explain(mistake);
  }
  if (claims.near(where, "lr", rate, at(step)->lr, kSameRate * peak_rate_) || !rate) return;
  const double by_batches = expected_learning_rate(train_, (step - 1) * train_.accumulate_grad_batches);
  if (std::abs(*rate - by_batches) <= kSameRate * peak_rate_)
    claims.explain("the schedule counted batches, of which a step accumulates several, and not steps");
}

Json member(const ToldJson& record, const char* key) { return record.contains(key) ? Json(record[key]) : Json(); }

std::optional<double> number_in(const ToldJson& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

}  // namespace suites::training_cases
