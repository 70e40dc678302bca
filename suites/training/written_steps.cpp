// The steps of a run that wrote itself down: their figures a second time, and the checkpoints.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "nsa/model/make.hpp"
#include "suites/codes.hpp"
#include "suites/oracle/compare.hpp"
#include "suites/training/verdicts.hpp"
#include "suites/training/written_figures.hpp"

namespace suites::training_cases {

using harness::Context;
using harness::Json;

namespace {

namespace fs = std::filesystem;

constexpr double kDocumentSlack = 2e-3;  // nats between a packed batch and its documents one by one

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
      claims_.holds(i < before.after.size() && oracle::same_bits(here.before[i].second, before.after[i].second),
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
      claims_.equal(where + ", " + name, "updates", scalar(read->tensors, "optimizer/step/" + name),
                    moments.at(name).updates);
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
    claims_.holds(model != told.end() && oracle::same_bits(model->second, weight), where, "weights", "others",
                  "those after this step");
    const bool copied = weight.element_size() < 4 && train_.master_weights;
    claims_.equal(where, "has a wide copy", master != told.end(), copied);
    if (!copied || master == told.end()) return;
    claims_.equal(where, "type of the wide copy", c10::toString(master->second.scalar_type()), "Float");
    claims_.holds(oracle::same_bits(master->second.to(weight.scalar_type()), weight), where, "wide copy",
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

}  // namespace

void judge_steps(const WrittenRun& run, Figures& figures, Claims& claims, Context& context) {
  StepJudge(run, figures, claims, context).run();
}

}  // namespace suites::training_cases
