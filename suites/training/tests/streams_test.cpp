#include "suites/training/streams.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "suites/codes.hpp"
#include "suites/training/tests/support.hpp"

namespace suites::training_cases {
namespace {

namespace fs = std::filesystem;
using nsa::train::BatchStream;
using nsa::train::Order;
using nsa::train::Split;
using nsa::train::StreamOptions;
using training_tests::finding;
using training_tests::found;
using training_tests::listed;
using training_tests::RecordingContext;

std::unique_ptr<BatchStream> product(const StreamOptions& options) { return nsa::train::open_stream(options); }

// The product's stream with something else done to its batches or its position.
class Changed : public BatchStream {
 public:
  using Change = std::function<nsa::train::Batch(BatchStream&)>;
  Changed(const StreamOptions& options, Change change) : source_(product(options)), change_(std::move(change)) {}
  nsa::train::Batch next() override { return change_(*source_); }
  [[nodiscard]] nlohmann::json position() const override { return source_->position(); }
  void seek(const nlohmann::json& position) override { source_->seek(position); }

 private:
  std::unique_ptr<BatchStream> source_;
  Change change_;
};

class Streams : public testing::Test {
 protected:
  harness::Settings with = training_tests::settings();
  RecordingContext context{with};
  // The explanation of the first finding with this code.
  std::string as_if(std::string_view code) {
    return found(context, code) ? finding(context, code).evidence.value("as_if", "") : listed(context);
  }
};

TEST_F(Streams, OfTheProductAreRight) {
  judge_streams(context, product);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  EXPECT_GT(context.checks, 10);
}

TEST_F(Streams, ATailThatIsLeftOutIsFound) {
  judge_streams(context, [](const StreamOptions& options) -> std::unique_ptr<BatchStream> {
    if (options.packed || options.order != Order::sequential || options.split != Split::train) return product(options);
    return std::make_unique<Changed>(options, [S = options.seq_len](BatchStream& source) {
      nsa::train::Batch batch = source.next();
      return batch.tokens.defined() && batch.tokens.size(1) < S + 1 ? nsa::train::Batch() : batch;
    });
  });
  EXPECT_THAT(as_if(codes::kBatchOrder), testing::HasSubstr("rows of the data were left out"));
}

TEST_F(Streams, ValidationThatIsTrainedOnIsFound) {
  judge_streams(context, [](StreamOptions options) {
    if (options.split == Split::train && options.data.ends_with(".jsonl")) options.validation_share = 0;
    return product(options);
  });
  EXPECT_EQ(as_if(codes::kBatchOrder), "what is held out for validation were trained on");
}

TEST_F(Streams, RandomTokensOfValidationThatAreThoseOfTrainingAreFound) {
  judge_streams(context, [](StreamOptions options) {
    if (options.data == "synthetic") options.split = Split::train;
    return product(options);
  });
  EXPECT_EQ(as_if(codes::kBatchOrder), "validation read what is trained on");
}

TEST_F(Streams, ASecondPassInTheOrderOfTheFirstIsFound) {
  judge_streams(context, [](StreamOptions options) -> std::unique_ptr<BatchStream> {
    if (options.order != Order::shuffled || options.epochs != 2) return product(options);
    options.epochs = 1;
    auto second = std::make_shared<std::unique_ptr<BatchStream>>(product(options));
    return std::make_unique<Changed>(options, [second](BatchStream& source) {
      const nsa::train::Batch batch = source.next();
      return batch.tokens.defined() ? batch : (*second)->next();
    });
  });
  EXPECT_EQ(as_if(codes::kBatchOrder), "every pass were shuffled by the same numbers");
}

TEST_F(Streams, AContinuationElsewhereIsFound) {
  class ForgetsItsPlace : public Changed {
   public:
    explicit ForgetsItsPlace(const StreamOptions& options)
        : Changed(options, [](BatchStream& source) { return source.next(); }) {}
    void seek(const nlohmann::json&) override {}
  };
  judge_streams(context, [](const StreamOptions& options) { return std::make_unique<ForgetsItsPlace>(options); });
  EXPECT_EQ(as_if(codes::kBatchOrder),
            "a resumed run went on elsewhere in the data than where the run before it stood");
}

TEST_F(Streams, AnErrorThatIsTakenForTheEndIsFound) {
  judge_streams(context, [](const StreamOptions& options) {
    return std::make_unique<Changed>(options, [](BatchStream& source) {
      try {
        return source.next();
      } catch (const std::runtime_error&) {
        return nsa::train::Batch();
      }
    });
  });
  EXPECT_EQ(as_if(codes::kBatchOrder), "a line that holds no document ended the data");
}

TEST_F(Streams, TokensThatAreLeftOutAtTheEndAreFound) {
  judge_streams(context, [](const StreamOptions& options) {
    return std::make_unique<Changed>(options, [S = options.seq_len](BatchStream& source) {
      nsa::train::Batch batch = source.next();
      const bool last = batch.tokens.defined() && !batch.cu_seqlens && batch.tokens.size(1) <= S;
      if (last && batch.tokens.size(1) > 2) batch.tokens = batch.tokens.slice(1, 0, -1);
      return batch;
    });
  });
  EXPECT_THAT(as_if(codes::kBatchOrder), testing::HasSubstr("tokens of the data were left out"));
}

TEST_F(Streams, RowsThatAreDrawnAnewAreFound) {
  judge_streams(context, [](const StreamOptions& options) -> std::unique_ptr<BatchStream> {
    if (options.order != Order::shuffled || options.packed) return product(options);
    auto first = std::make_shared<at::Tensor>();
    return std::make_unique<Changed>(options, [first, S = options.seq_len](BatchStream& source) {
      nsa::train::Batch batch = source.next();
      if (!batch.tokens.defined() || batch.tokens.size(1) <= S) return batch;
      if (!first->defined()) *first = batch.tokens;
      if (first->sizes() == batch.tokens.sizes()) batch.tokens = *first;
      return batch;
    });
  });
  EXPECT_THAT(as_if(codes::kBatchOrder), testing::HasSubstr("rows were drawn anew each time"));
}

TEST_F(Streams, ALastCropThatIsNeverDrawnIsFound) {
  judge_streams(context, [](const StreamOptions& options) {
    if (!options.data.ends_with("short.txt")) return product(options);
    StreamOptions shorter = options;
    shorter.data += ".cut";
    fs::copy_file(options.data, shorter.data, fs::copy_options::overwrite_existing);
    fs::resize_file(shorter.data, fs::file_size(shorter.data) - 1);
    return product(shorter);
  });
  EXPECT_EQ(as_if(codes::kBatchOrder), "the last crop of a text were never drawn");
}

TEST_F(Streams, BordersThatAreLostAreFound) {
  judge_streams(context, [](const StreamOptions& options) {
    return std::make_unique<Changed>(options, [](BatchStream& source) {
      nsa::train::Batch batch = source.next();
      if (batch.cu_seqlens) batch.cu_seqlens = at::stack({(*batch.cu_seqlens)[0], (*batch.cu_seqlens)[-1]});
      return batch;
    });
  });
  EXPECT_TRUE(found(context, codes::kDocuments)) << listed(context);
  EXPECT_FALSE(found(context, codes::kBatchOrder)) << listed(context);
}

}  // namespace
}  // namespace suites::training_cases
