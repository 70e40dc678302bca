// Runs as people make them, with rates, warm-ups, precisions and data of every kind: none is called divergent. One that
// is far too fast is, and the size of its updates would not have told.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "nsa/tests/model_fixtures.hpp"
#include "nsa/train/stream.hpp"
#include "nsa/train/trainer.hpp"

namespace {

using namespace nsa::train;
using nsa::Precision;
using nsa::TrainConfig;

constexpr std::int64_t kSteps = 80;  // the first 64 make what is usual, so that the others are held against it

TrainConfig config_of(double lr, std::int64_t warmup) {
  TrainConfig config;
  config.precision = Precision::fp32;
  config.steps = kSteps;
  config.seq_len = 32;
  config.batch_size = 2;
  config.lr = lr;
  config.warmup_steps = warmup;
  return config;
}

constexpr std::string_view kSynthetic = "synthetic";

struct Data {
  const char* name;
  std::string_view file;
  Order order = Order::sequential;
  bool packed = false;
};
constexpr std::array<Data, 5> kData = {Data{"crops of a text", "text/corpus.txt", Order::random_crops},
                                       {"a text", "text/corpus.txt"},
                                       {"shuffled documents", "text/paragraphs.jsonl", Order::shuffled},
                                       {"packed documents", "text/paragraphs.jsonl", Order::sequential, true},
                                       {"random tokens", kSynthetic}};

class Training {
 public:
  Training(TrainConfig config, const Data& data) : config_(std::move(config)) {
    nsa::ModelConfig model = nsa::fixtures::tiny();
    model.n_layers = 1;
    model_ = nsa::fixtures::make_model(model, {}, config_.seed);
    const auto file = std::filesystem::path(__FILE__).parent_path() / "../../fixtures" / data.file;
    config_.packed = data.packed;
    if (data.packed) {  // one row of all
      config_.seq_len *= config_.batch_size;
      config_.batch_size = 1;
    }
    trainer_ = std::make_unique<Trainer>(model_, config_,
                                         std::shared_ptr<BatchStream>(open_stream(
                                             {.data = data.file == kSynthetic ? std::string(data.file) : file.string(),
                                              .batch_size = config_.batch_size,
                                              .seq_len = config_.seq_len,
                                              .seed = config_.seed,
                                              .packed = data.packed,
                                              .order = data.order,
                                              .epochs = data.file == kSynthetic ? 1 : 0})));
  }
  StepReport step() { return trainer_->step(); }
  // All parameters in a row.
  [[nodiscard]] at::Tensor weights() const {
    std::vector<at::Tensor> parts;
    for (const auto& parameter : model_->parameters()) parts.push_back(parameter.detach().to(at::kDouble).flatten());
    return at::cat(parts);
  }
  [[nodiscard]] std::string evidence() const { return trainer_->divergence().evidence().dump(); }

 private:
  TrainConfig config_;
  nsa::LanguageModel model_{nullptr};
  std::unique_ptr<Trainer> trainer_;
};

TEST(HealthyRuns, TwentyOfThemAlarmNobody) {
  constexpr std::array kRates = {3e-4, 1e-3, 3e-3, 1e-2};
  constexpr std::array<std::int64_t, 3> kWarmups = {0, 5, 40};
  constexpr std::array kPrecisions = {Precision::fp32, Precision::bf16, Precision::fp64};
  for (std::size_t i = 0; i < 20; ++i) {  // every rate with every kind of data
    const Data& data = kData[i % kData.size()];
    TrainConfig config = config_of(kRates[i % kRates.size()], kWarmups[i / 7]);
    config.precision = kPrecisions[i % kPrecisions.size()];
    config.seed = 100 + i;
    if (i % 2 == 1) config.grad_clip = 1e6;
    const std::string name = fmt::format("{} lr {} warm-up {} {}", data.name, config.lr, config.warmup_steps,
                                         nsa::to_string(config.precision));
    Training run(config, data);
    double first = 0, last = 0;
    for (std::int64_t s = 0; s < kSteps; ++s) {
      const StepReport report = run.step();
      ASSERT_EQ(report.stop, Stop::none) << name << ": step " << s << ": " << report.anomaly << run.evidence();
      (s == 0 ? first : last) = report.loss;
    }
    EXPECT_LT(last, data.file == kSynthetic ? first + 0.5 : first - 0.1) << name << ": not a healthy run";
  }
}

TEST(HealthyRuns, OneThatIsFarTooFastIsStopped) {
  TrainConfig config = config_of(1.0, 0);
  config.grad_clip = 1e6;
  Training run(config, kData[0]);
  StepReport report = run.step();
  for (std::int64_t s = 1; s < kSteps && report.stop == Stop::none; ++s) report = run.step();
  EXPECT_EQ(report.stop, Stop::diverged) << run.evidence();
}

// Why the guard does not ask for the update's norm (divergence.hpp).
TEST(HealthyRuns, UpdatesAreAsLargeWhenARunDiverges) {
  const auto largest = [](double lr, double clip) {
    TrainConfig config = config_of(lr, 0);
    config.grad_clip = clip;
    config.lr_min = lr;  // the same rate throughout
    Training run(config, kData[0]);
    double ratio = 0;
    at::Tensor before = run.weights();
    for (std::int64_t s = 0; s < kSteps && run.step().stop == Stop::none; ++s) {
      const at::Tensor after = run.weights();
      const double size = (after - before).norm().item<double>() / std::sqrt(static_cast<double>(after.numel()));
      if (s > 0) ratio = std::max(ratio, size / lr);  // the first is the rate itself in every run
      before = after;
    }
    return ratio;
  };
  const double sound = largest(3e-3, 1), diverging = largest(1.0, 1e6);
  RecordProperty("sound", fmt::format("{:.3f}", sound));
  RecordProperty("diverging", fmt::format("{:.3f}", diverging));
  EXPECT_LT(sound, 1.2);
  EXPECT_LT(diverging, 1.5 * sound);
}

}  // namespace
