// The steps of a run that wrote itself down: their figures a second time, and the checkpoints.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "nsa/model/make.hpp"
#include "suites/codes.hpp"
#include "suites/training/verdicts.hpp"
#include "suites/training/written_figures.hpp"

namespace suites::training_cases {

using harness::Context;
using harness::Json;

namespace {

namespace fs = std::filesystem;

constexpr double kDocumentSlack = 2e-3;  // nats between a packed batch and its documents one by one
constexpr double kSameNumber = 1e-9;     // of the peak rate

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bytes = [](const at::Tensor& t) { return t.detach().to(at::kCPU).contiguous().flatten().view(at::kByte); };
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && at::equal(bytes(a), bytes(b));
}

class StepJudge {
 public:
  StepJudge(const WrittenRun& run, Figures& figures, Claims& claims, Context& context)
      : run_(run), train_(run.config.train), steps_(run), figures_(figures), claims_(claims), context_(context) {}

  // The twin goes through the run, and is at hand where a checkpoint was saved.
  void run() {
    judge_names();
    RunTwin twin(run_.config, run_.device);
    Claims documents("loss of packed batches", codes::kDocuments);
    const auto pass = train_.packed ? PlainData(train_).training.batches(train_) : std::vector<PlainBatch>{};
    std::int64_t tokens = 0;
    for (std::int64_t step = 1; step <= steps_.last(); ++step) {
      context_.progress();
      const SeenStep& seen = seen_at(step);
      const RunTwin::Step own = twin.step(seen);
      StepFigures figures{.of = own.of,
                          .grad_norm = own.grad_norm,
                          .lr = expected_learning_rate(train_, step - 1),
                          .tokens = tokens += own.of.predictions,
                          .validation = {},
                          .by_batch = own.by_batch,
                          .gates = own.gates};
      if (steps_.validated(step) && !seen.validations.empty()) {
        figures.validation_by_batch = twin.losses(seen.after, seen.validations.front());
        figures.validation = mean_of(figures.validation_by_batch, seen.validations.front());
      }
      if (train_.packed) {
        std::vector<PlainBatch> joined = seen.batches;
        for (PlainBatch& batch : joined) batch.cu_seqlens.clear();
        figures.of_one_text = mean_of(twin.losses(seen.before, joined), seen.batches).loss;
      }
      figures_.add(figures);
      if (train_.packed) judge_documents(documents, twin, step, pass);
      if (step > 1) judge_continuity(step);
      if (steps_.saved(step)) judge_checkpoint(step, twin.moments());
    }
    if (train_.packed) documents.conclude(context_);
    // A matrix among them says more than a vector does.
    if (!wrong_moments_.empty() && moments_were_first_ &&
        std::all_of(wrong_moments_.begin(), wrong_moments_.end(), [](const auto& one) { return one.second == 1; }))
      claims_.explain_first(
          "gradients of vectors (norms, biases) alone were clipped, scaled or lost otherwise than the others");
  }

 private:
  [[nodiscard]] const SeenStep& seen_at(std::int64_t step) const {
    return run_.steps[static_cast<std::size_t>(step - 1)];
  }

  void judge_names() {
    std::set<std::string> told, wanted;
    std::error_code error;
    for (auto entry = fs::directory_iterator(run_.folder / "checkpoints", error);
         !error && entry != fs::directory_iterator(); entry.increment(error))
      told.insert(entry->path().filename());
    for (const std::int64_t step : steps_.all(&WrittenSteps::saved)) wanted.insert(checkpoint_name(step));
    claims_.equal("the folder", "files", told, wanted);
  }
  // The batches as the data file has their documents, each document by itself, against the batch as it was trained on.
  void judge_documents(Claims& claims, RunTwin& twin, std::int64_t step, const std::vector<PlainBatch>& pass) {
    std::vector<PlainBatch> recounted;
    for (const PlainBatch& batch : seen_at(step).batches) {
      const PlainBatch* same = with_rows_of(batch, pass);
      recounted.push_back(same != nullptr ? *same : batch);
    }
    const std::string where = fmt::format("step {}", step);
    const LossOf alone = twin.loss_of_documents(seen_at(step).before, recounted);
    claims.near(where, "loss", figures_.at(step)->of.loss, alone.loss, kDocumentSlack);
    claims.equal(where, "predictions", figures_.at(step)->of.predictions, alone.predictions);
  }

  // Nothing changes the weights between two steps, not even a start.
  void judge_continuity(std::int64_t step) {
    const SeenStep& before = seen_at(step - 1);
    const SeenStep& here = seen_at(step);
    const Json pass = before.position.value("epoch", Json()), passed = here.position.value("epoch", Json());
    claims_.holds(!pass.is_number() || !passed.is_number() || passed.get<double>() >= pass.get<double>(),
                  fmt::format("step {}", step), "pass over the data", passed, fmt::format("at least {}", pass.dump()));
    for (std::size_t i = 0; i < here.before.size(); ++i)
      claims_.holds(i < before.after.size() && same_bits(here.before[i].second, before.after[i].second),
                    fmt::format("step {}", step), here.before[i].first, "the weights that the step before left",
                    "others");
  }

  void judge_checkpoint(std::int64_t step, const std::map<std::string, Moments>& moments) {
    const std::string where = checkpoint_name(step);
    const SeenStep& seen = seen_at(step);
    std::optional<ToldCheckpoint> read;
    try {
      read = told_checkpoint(run_.folder / "checkpoints" / where);
    } catch (const Unreadable& error) {
      return claims_.wrong(where, "content", error.what(), "a checkpoint");
    }
    const ToldJson& facts = read->facts;
    claims_.equal(where, "step", member(facts, "step"), step);
    claims_.equal(where, "tokens", member(facts, "tokens"), figures_.at(step)->tokens);
    claims_.equal(where, "position in the data", member(facts, "data"), Json(seen.position));
    judge_guard(where, step, member(facts, "divergence"));
    claims_.equal(where, "config", member(facts, "config"), Json(ToldJson(nsa::identity(run_.config))));
    figures_.loss(claims_, where, step, number_in(facts, "loss"));
    const bool held = claims_.hold();
    for (const auto& [name, weight] : seen.after) {
      judge_parameter(fmt::format("{}, {}", where, name), name, weight, read->tensors);
      judge_moments(fmt::format("{}, {}", where, name), name, moments.at(name), read->tensors);
      claims_.equal(where + ", " + name, "updates", scalar(read->tensors, "optimizer/step/" + name), step);
      // 16 bits would count no further than 256.
      const auto count = read->tensors.find("optimizer/step/" + name);
      if (count != read->tensors.end())
        claims_.holds(count->second.element_size() >= 4, where + ", " + name, "type of updates",
                      c10::toString(count->second.scalar_type()), "one of 32 bits at least");
    }
    if (held && !claims_.hold() && last_right_ == run_.cut) claims_.note_first("right_before", "the resume");
    if (claims_.hold()) last_right_ = step;
    const auto models = std::count_if(read->tensors.begin(), read->tensors.end(),
                                      [](const auto& tensor) { return tensor.first.starts_with("model/"); });
    claims_.equal(where, "parameters", models, seen.after.size());
  }

  // What the guard of divergence knows: the first loss and so many steps, whatever starts lie between.
  void judge_guard(const std::string& where, std::int64_t step, const Json& told) {
    const std::string here = where + ", guard of divergence";
    const Json known = told.is_object() ? told : Json::object(), first = known.value("first", Json());
    figures_.loss(claims_, here, 1, first.is_number() ? std::optional(first.get<double>()) : std::nullopt);
    claims_.equal(here, "steps", known.value("norms", Json::array()).size(), step);
  }

  static Json scalar(const std::map<std::string, at::Tensor>& tensors, const std::string& name) {
    const auto found = tensors.find(name);
    return found != tensors.end() && found->second.numel() == 1 ? reports::number(found->second.item<double>())
                                                                : Json();
  }

  // The bits of that moment; and its wide copy rounds to it.
  void judge_parameter(const std::string& where, const std::string& name, const at::Tensor& weight,
                       const std::map<std::string, at::Tensor>& told) {
    const auto model = told.find("model/" + name), master = told.find("optimizer/master/" + name);
    if (model != told.end())
      claims_.equal(where, "type of the weights", c10::toString(model->second.scalar_type()),
                    c10::toString(weight.scalar_type()));
    claims_.holds(model != told.end() && same_bits(model->second, weight), where, "weights", "others",
                  "those after this step");
    const bool copied = weight.element_size() < 4 && train_.master_weights;
    claims_.equal(where, "has a wide copy", master != told.end(), copied);
    if (!copied || master == told.end()) return;
    claims_.equal(where, "type of the wide copy", c10::toString(master->second.scalar_type()), "Float");
    claims_.holds(same_bits(master->second.to(weight.scalar_type()), weight), where, "wide copy",
                  "rounds to other weights", "those after this step");
  }

  void judge_moments(const std::string& where, const std::string& name, const Moments& own,
                     const std::map<std::string, at::Tensor>& told) {
    const at::ScalarType stored = nsa::storage_type(train_.precision);
    const bool copied = stored == at::kBFloat16 && train_.master_weights;
    for (const auto& [part, wanted] : {std::pair("exp_avg", own.exp_avg), std::pair("exp_avg_sq", own.exp_avg_sq)}) {
      const auto found = told.find(fmt::format("optimizer/{}/{}", part, name));
      if (found == told.end() || found->second.sizes() != wanted.sizes()) {
        claims_.wrong(where, part, "missing, or of another shape", "moments of this step");
        continue;
      }
      claims_.equal(where, fmt::format("type of {}", part), c10::toString(found->second.scalar_type()),
                    c10::toString(copied ? at::kFloat : stored));
      const at::Tensor seen = wanted.to(at::kCPU), difference = found->second.to(at::kDouble) - seen;
      // Few values scatter (oracle::RmsLaw); a bias' gradient may be a sum that cancels.
      const double size = seen.norm().item<double>(), scatter = 1 + 4 / std::sqrt(static_cast<double>(seen.numel()));
      const bool sound = claims_.hold();
      if (claims_.near(where, fmt::format("{} is off by", part), difference.norm().item<double>(), 0,
                       figures_.slack().moments * scatter * size + 1e-15))
        continue;
      wrong_moments_[name] = wanted.dim();
      moments_were_first_ = moments_were_first_ || sound;
      const bool first_moment = part == std::string_view("exp_avg");
      const at::Tensor other = (first_moment ? own.exp_avg_sq : own.exp_avg).to(at::kCPU);
      if ((found->second.to(at::kDouble) - other).norm().item<double>() <=
          figures_.slack().moments * scatter * other.norm().item<double>())
        claims_.explain(
            fmt::format("{} were saved under the name of {}", first_moment ? "exp_avg_sq" : "exp_avg", part));
    }
  }

  const WrittenRun& run_;
  const nsa::TrainConfig& train_;
  WrittenSteps steps_;
  Figures& figures_;
  std::map<std::string, std::int64_t> wrong_moments_;  // parameter -> its dimensions
  bool moments_were_first_ = false;                    // nothing was wrong before them
  std::int64_t last_right_ = 0;  // checkpoint; run_.cut is the one that the second start begins with
  Claims& claims_;
  Context& context_;
};

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
  if (claims.near(where, "lr", rate, at(step)->lr, kSameNumber * peak_rate_) || !rate) return;
  const double by_batches = expected_learning_rate(train_, (step - 1) * train_.accumulate_grad_batches);
  if (std::abs(*rate - by_batches) <= kSameNumber * peak_rate_)
    claims.explain("the schedule counted batches, of which a step accumulates several, and not steps");
}

Json member(const ToldJson& record, const char* key) { return record.contains(key) ? Json(record[key]) : Json(); }

std::optional<double> number_in(const ToldJson& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

void judge_steps(const WrittenRun& run, Figures& figures, Claims& claims, Context& context) {
  StepJudge(run, figures, claims, context).run();
}

}  // namespace suites::training_cases
