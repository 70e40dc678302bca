#include "nsa/train/run/together.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <torch/version.h>

#include "base/environment.hpp"
#include "build_info.hpp"
#include "nsa/parallel/gradient_buckets.hpp"
#include "nsa/train/run/failure.hpp"

namespace nsa::train {

namespace {

nlohmann::json words_of_first(parallel::Group& group, const std::string& about, const nlohmann::json& words) {
  return nlohmann::json::parse(
      group.gather(about, words.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)).front());
}

AgreedWishes named(const Trainer::Wishes& sums) { return {sums[0], sums[1], sums[2], sums[3]}; }

}  // namespace

nlohmann::json Together::told_by_first(const std::string& about, const nlohmann::json& words) const {
  return group_ ? words_of_first(*group_, about, words) : words;
}

void Together::begin(Trainer& trainer, const Dispatcher& dispatcher) {
  if (!group_) return;
  trainer.on_wish([this, &dispatcher] { return own(dispatcher); });
  Trainer::Wishes sums{};
  for (const auto& one : group_->gather("wishes", nlohmann::json(own(dispatcher)).dump())) {
    const auto asked = nlohmann::json::parse(one).get<Trainer::Wishes>();
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += asked[i];
  }
  first_ = sums;
  begun_at_ = trainer.steps_made();
}

AgreedWishes Together::wishes(const Trainer& trainer) const {
  if (first_ && trainer.steps_made() == begun_at_) return named(*first_);
  return named(trainer.wishes());
}

Trainer::Wishes Together::own(const Dispatcher& dispatcher) const {
  const auto signal = signals_.arrived();
  double replaced = 0;
  for (const auto& [op, record] : dispatcher.strict_fallbacks()) replaced += static_cast<double>(record.replaced);
  std::error_code error;
  const bool halted = std::filesystem::exists(std::filesystem::symlink_status(halt_file_, error));
  return {signal && *signal == SIGINT ? 1.0 : 0.0, signal && *signal != SIGINT ? 1.0 : 0.0, halted ? 1.0 : 0.0,
          replaced};
}

bool is_validated(const TrainConfig& config, std::int64_t step) {
  return config.eval_every > 0 && step % config.eval_every == 0;
}
bool is_saved(const TrainConfig& config, std::int64_t step) {
  return config.save_every > 0 && step % config.save_every == 0;
}
bool is_logged(const TrainConfig& config, std::int64_t step, std::int64_t last_step) {
  return step == 1 || step == last_step || step % config.log_every == 0 || is_validated(config, step);
}

bool goes_on_behind(const Training& training, std::int64_t step, std::int64_t last_step) {
  const TrainConfig& train = training.config.train;
  return training.device.is_cuda() && !training.after_step && step < last_step && !is_saved(train, step) &&
         !is_logged(train, step, last_step);
}

void agree_on_arguments(parallel::Group& group, const Options& options, const Config& config) {
  std::string out = std::filesystem::absolute(options.out).lexically_normal().string();
  if (out.size() > 1 && out.back() == '/') out.pop_back();
  parallel::agree(
      group, "arguments",
      {{"folder (--out)", out}, {"last step (--steps)", std::to_string(options.steps.value_or(config.train.steps))}});
}

void by_first_alone(parallel::Group* group, const std::string& about, const std::function<void()>& what) {
  if (group == nullptr) return what();
  std::optional<Failure> failure;
  nlohmann::json words = nlohmann::json::object();
  if (group->rank() == 0) {
    try {
      what();
    } catch (const std::exception&) {
      failure = explain();
      words = {{"code", static_cast<int>(failure->code)}, {"message", failure->message}};
    }
  }
  try {
    words = words_of_first(*group, about, words);
  } catch (const parallel::Error&) {  // another rank was lost meanwhile
    if (!failure) throw;
  }
  if (failure) throw RunRefused(*failure);
  if (words.contains("code"))
    throw RunRefused({static_cast<ExitCode>(words["code"].get<int>()),
                      fmt::format("rank 0 has ended: {}", words["message"].get<std::string>())});
}

parallel::Facts facts_of(const Training& training) {
  parallel::Facts facts = {{"build", build_info::kBuildId},
                           {"torch", TORCH_VERSION},
                           {"device", std::string(training.device.type() == at::kCUDA ? "cuda" : "cpu")}};
  const auto environment = base::environment();
  base::Variables variables(environment);
  const auto bucket_kb = parallel::sum_bucket_kb(variables).value_or(parallel::BucketSizes{}.bytes >> 10);
  facts.emplace_back("NPROC_SUM_BUCKET_KB", std::to_string(bucket_kb));
  for (const auto& [name, value] : flatten(training.flags)) facts.emplace_back("flag " + name, value);
  for (const auto& [key, value] : flatten(training.config)) facts.emplace_back(key, value);
  return facts;
}

}  // namespace nsa::train
