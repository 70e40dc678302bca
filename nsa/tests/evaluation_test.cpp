#include "nsa/train/evaluation.hpp"

#include <gtest/gtest.h>

#include "nsa/tests/model_fixtures.hpp"

namespace {

using namespace nsa::train;

// The batches that it is given, one after another.
class Listed : public BatchStream {
 public:
  explicit Listed(std::vector<Batch> batches) : batches_(std::move(batches)) {}
  Batch next() override { return next_ < batches_.size() ? batches_[next_++] : Batch{}; }
  [[nodiscard]] nlohmann::json position() const override { return next_; }
  void seek(const nlohmann::json& position) override { next_ = position; }

 private:
  std::vector<Batch> batches_;
  std::size_t next_ = 0;
};

TEST(Evaluation, IsTheMeanOverPredictionsAndLeavesTheModelAlone) {
  auto model = nsa::fixtures::make_model(nsa::fixtures::tiny());
  model->train();
  const at::Tensor whole = nsa::fixtures::bytes({2, 17}, 1), rest = nsa::fixtures::bytes({1, 5}, 2);
  Listed stream({{whole, {}}, {rest, {}}, {nsa::fixtures::bytes({2, 17}, 3), {}}});
  int calls = 0;
  const Evaluation two = evaluate(model, stream, 2, [&] { ++calls; });
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(two.batches, 2);
  EXPECT_EQ(two.tokens, 32 + 4);
  const at::NoGradGuard no_grad;
  const double a = model->loss(whole).item<double>(), b = model->loss(rest).item<double>();
  EXPECT_NEAR(two.loss, (32 * a + 4 * b) / 36, 1e-6);
  EXPECT_TRUE(model->is_training());
  for (const auto& parameter : model->parameters()) EXPECT_FALSE(parameter.grad().defined());
  EXPECT_EQ(evaluate(model, stream, 5).batches, 1);  // the stream ends
  EXPECT_THROW((void)evaluate(model, stream, 5), std::runtime_error);
  EXPECT_TRUE(model->is_training());
}

TEST(Predictions, TheFirstTokenOfADocumentIsNotPredicted) {
  EXPECT_EQ(predictions({at::zeros({3, 9}, at::kLong), {}}), 24);
  const auto packed = [](std::vector<int> cu) {
    return predictions({at::zeros({1, cu.back()}, at::kLong), at::tensor(cu, at::kInt)});
  };
  EXPECT_EQ(packed({0, 9}), 8);
  EXPECT_EQ(packed({0, 4, 9}), 7);
  EXPECT_EQ(packed({0, 0, 1, 4, 4, 9}), 6);
}

}  // namespace
