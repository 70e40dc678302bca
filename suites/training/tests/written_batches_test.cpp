// written_down is loud for every wrong batch: the program runs on a stream that is wrong.
#include "suites/training/tests/written.hpp"

#include <ATen/ATen.h>

namespace suites::training_cases {
namespace {

// The product's stream with one thing done otherwise.
class Wrong : public BatchStream {
 public:
  using Next = std::function<Batch(BatchStream&)>;
  using Seek = std::function<void(BatchStream&, const nlohmann::json&)>;
  Wrong(std::shared_ptr<BatchStream> source, Next next, Seek seek)
      : source_(std::move(source)), next_(std::move(next)), seek_(std::move(seek)) {}
  Batch next() override { return next_ ? next_(*source_) : source_->next(); }
  [[nodiscard]] nlohmann::json position() const override { return source_->position(); }
  void seek(const nlohmann::json& position) override {
    if (seek_)
      seek_(*source_, position);
    else
      source_->seek(position);
  }

 private:
  std::shared_ptr<BatchStream> source_;
  Next next_;
  Seek seek_;
};

StreamChange in_stream(Split split, const Wrong::Next& next, const Wrong::Seek& seek = {}) {
  return [=](std::shared_ptr<BatchStream> source, Split of, int) -> std::shared_ptr<BatchStream> {
    if (of != split) return source;
    return std::make_shared<Wrong>(std::move(source), next, seek);
  };
}

// `change` is made to the batch of this number, from 1, of the first start.
StreamChange in_batch(int number, const std::function<void(Batch&)>& change) {
  return in_stream(Split::train, [=, count = std::make_shared<int>(0)](BatchStream& source) {
    Batch batch = source.next();
    if (++*count == number) change(batch);
    return batch;
  });
}

TEST_F(WrittenDown, ABatchThatComesAgainIsFound) {
  run_with(WrittenData::text, in_stream(Split::train, [count = 0, last = Batch()](BatchStream& source) mutable {
             Batch batch = source.next();
             if (++count != 4) last = batch;
             return last;
           }));
  EXPECT_EQ(what_of("rows of a pass", codes::kBatchTwice), "row") << listed(context);
}

TEST_F(WrittenDown, ARowThatStandsTwiceInABatchIsFound) {
  run_with(WrittenData::text, in_batch(2, [](Batch& batch) {
             batch.tokens = at::stack({batch.tokens[0], batch.tokens[0]});
           }));
  EXPECT_EQ(what_of("rows of a pass", codes::kBatchTwice), "row") << listed(context);
}

TEST_F(WrittenDown, ACropThatComesAgainIsFound) {
  run_with(WrittenData::crops, in_stream(Split::train, [count = 0, first = Batch()](BatchStream& source) mutable {
             Batch batch = source.next();
             if (++count == 1) first = batch;
             return count == 3 ? first : batch;
           }));
  EXPECT_EQ(what_of("rows of a pass", codes::kBatchTwice), "row") << listed(context);
  EXPECT_FALSE(found(context, codes::kBatchOrder)) << listed(context);
}

TEST_F(WrittenDown, RowsInAnotherOrderAreFound) {
  run_with(WrittenData::text, in_batch(3, [](Batch& batch) { batch.tokens = batch.tokens.flip(0); }));
  EXPECT_EQ(what_of("batches of training", codes::kBatchOrder), "row 1") << listed(context);
  EXPECT_FALSE(found(context, codes::kBatchTwice)) << listed(context);
}

TEST_F(WrittenDown, TrainingOnWhatIsHeldOutIsFound) {
  WrittenRun run = healthy(WrittenData::text);
  const PlainData data(run.config.train);
  auto& row = run.steps[1].batches[0].rows[0];
  ASSERT_GE(data.validation.tokens.size(), row.size());
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<unsigned char>(data.validation.tokens[i]);
  judge_batches(run, context);
  ASSERT_TRUE(found(context, codes::kBatchOrder)) << listed(context);
  EXPECT_EQ(finding(context, codes::kBatchOrder).evidence["as_if"], "what is held out for validation were trained on");
}

// The batch that stood at this place of the first pass.
TEST_F(WrittenDown, AnOrderThatIsTheSameInEveryPassIsFound) {
  const auto first = std::make_shared<std::map<nlohmann::json, Batch>>();
  run_with(WrittenData::shuffled, in_stream(Split::train, [first](BatchStream& source) {
             const Batch batch = source.next();
             return first->try_emplace(source.position().at("row"), batch).first->second;
           }));
  EXPECT_EQ(what_of("batches of training", codes::kBatchOrder), "order of the pass") << listed(context);
  EXPECT_FALSE(found(context, codes::kBatchTwice)) << listed(context);
}

TEST_F(WrittenDown, AShuffledRowOfAnotherPlaceIsFound) {
  run_with(WrittenData::shuffled, in_batch(2, [](Batch& batch) { batch.tokens = batch.tokens.roll(1, 1); }));
  EXPECT_EQ(what_of("batches of training", codes::kBatchOrder), "row 1") << listed(context);
}

TEST_F(WrittenDown, ATokenThatIsNotTheFilesIsFound) {
  for (const WrittenData data : {WrittenData::text, WrittenData::crops}) {
    context.findings.clear();
    run_with(data, in_batch(2, [](Batch& batch) { batch.tokens[0][7] = 7; }));
    EXPECT_EQ(what_of("batches of training", codes::kBatchOrder), "row 1") << listed(context);
    fs::remove_all(folder);
  }
}

TEST_F(WrittenDown, AResumeOneBatchEarlyIsFound) {
  auto positions = std::make_shared<std::vector<nlohmann::json>>();  // before each batch of the first start
  run_with(WrittenData::text,
           [=](std::shared_ptr<BatchStream> source, Split of, int start) -> std::shared_ptr<BatchStream> {
             if (of == Split::validation) return source;
             const auto next = [=](BatchStream& inner) {
               if (start == 0) positions->push_back(inner.position());
               return inner.next();
             };
             const auto seek = [=](BatchStream& inner, const nlohmann::json&) { inner.seek(positions->back()); };
             return std::make_shared<Wrong>(std::move(source), next, seek);
           });
  EXPECT_EQ(what_of("rows of a pass", codes::kBatchTwice), "row") << listed(context);
}

TEST_F(WrittenDown, AResumeOneBatchLateIsFound) {
  run_with(WrittenData::packed, in_stream(Split::train, {}, [](BatchStream& source, const nlohmann::json& position) {
             source.seek(position);
             (void)source.next();
           }));
  EXPECT_EQ(what_of("batches of training", codes::kBatchOrder), "row 1") << listed(context);
  EXPECT_EQ(finding(context, codes::kBatchOrder).evidence["as_if"],
            "a resumed run went on elsewhere in the data than where the run before it stood");
  EXPECT_FALSE(found(context, codes::kBatchTwice)) << listed(context);
}

TEST_F(WrittenDown, AValidationThatGoesOnIsFound) {
  run_with(WrittenData::crops, in_stream(Split::validation, {}, [](BatchStream&, const nlohmann::json&) {}));
  EXPECT_EQ(what_of("batches of validation", codes::kToldOtherwise), "batch 1, row 1") << listed(context);
}

TEST_F(WrittenDown, AValidationOnTrainingDataIsFound) {
  for (const WrittenData data : {WrittenData::text, WrittenData::crops, WrittenData::packed}) {
    context.findings.clear();
    const WrittenTrial trial = quick_trial(data, folder);
    run_with(data, [&](std::shared_ptr<BatchStream> source, Split of, int) -> std::shared_ptr<BatchStream> {
      if (of == Split::train) return source;
      const bool packed = data == WrittenData::packed;
      return nsa::train::open_stream(
          {.data = (folder / (packed ? "documents.jsonl" : "prose.txt")).string(),
           .batch_size = packed ? 1 : 2,
           .seq_len = 48,
           .validation_share = 0.25,
           .packed = packed,
           .order = data == WrittenData::crops ? nsa::train::Order::random_crops : nsa::train::Order::sequential});
    });
    EXPECT_EQ(what_of("batches of validation", codes::kToldOtherwise), "batch 1, row 1") << listed(context);
    fs::remove_all(folder);
  }
}

// Changes the borders of the first batch that has one inside.
StreamChange in_borders(const std::function<at::Tensor(const at::Tensor&)>& change) {
  return in_stream(Split::train, [=, done = std::make_shared<bool>(false)](BatchStream& source) {
    Batch batch = source.next();
    if (!*done && batch.cu_seqlens && batch.cu_seqlens->numel() > 2) {
      batch.cu_seqlens = change(*batch.cu_seqlens);
      *done = true;
    }
    return batch;
  });
}

TEST_F(WrittenDown, DocumentsThatAreCutOtherwiseAreFound) {
  const auto documents = [&](const StreamChange& stream) {
    context.findings.clear();
    run_with(WrittenData::packed, stream);
    fs::remove_all(folder);
    return what_of("documents of the batches", codes::kDocuments);
  };
  EXPECT_EQ(documents(in_borders([](const at::Tensor& cu) {
              return at::cat({cu.slice(0, 0, 1), cu.slice(0, 2)});
            })),
            "borders")
      << "two documents are one";
  EXPECT_EQ(what_of("loss of packed batches", codes::kDocuments), "loss") << listed(context);
  EXPECT_EQ(documents(in_borders([](const at::Tensor& cu) {
              at::Tensor moved = cu.clone();
              moved[1] -= 1;
              return moved;
            })),
            "borders");
  EXPECT_NE(documents(in_borders([](const at::Tensor& cu) {
              at::Tensor shorter = cu.clone();
              shorter[-1] -= 1;
              return shorter;
            })),
            "")
      << "the end of the last one";
  EXPECT_NE(documents(in_stream(Split::train,
                                [](BatchStream& source) {
                                  Batch batch = source.next();
                                  batch.cu_seqlens.reset();
                                  return batch;
                                })),
            "")
      << "targets across the borders";
}

}  // namespace
}  // namespace suites::training_cases
