// What a run read, batch by batch, against the data told a second time.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "nsa/train/stream.hpp"
#include "suites/codes.hpp"
#include "suites/training/claims.hpp"
#include "suites/training/written_down.hpp"

namespace suites::training_cases {

namespace {

using harness::Context;
using harness::Json;
using Row = std::vector<std::int64_t>;
using Rows = std::vector<std::vector<Row>>;  // batch by batch

class BatchJudge {
 public:
  BatchJudge(const WrittenRun& run, Context& context)
      : train_(run.config.train), run_(run), context_(context), data_(run.config.train) {
    if (!crops()) pass_ = data_.training.batches(train_);
    if (!crops() && pass_.empty()) throw std::logic_error("written_down: the data holds no batch");
    kept_ = data_.validation.batches(train_);
  }

  void run() {
    for (std::size_t i = 0; i < run_.steps.size(); ++i) {
      const SeenStep& step = run_.steps[i];
      const std::string where = fmt::format("step {}", i + 1);
      order_.equal(where, "batches of the step", step.batches.size(), train_.accumulate_grad_batches);
      for (const PlainBatch& batch : step.batches) judge(batch, where);
      if (order_.hold()) right_steps_ = static_cast<std::int64_t>(i + 1);
      if (!train_.packed) continue;
      const bool counted = documents_.hold();
      documents_.equal(where, "predictions so far", step.tokens_seen, predictions_);
      if (counted && !documents_.hold() && static_cast<std::int64_t>(i) == run_.cut)
        documents_.explain(step.tokens_seen < run_.steps[i - 1].tokens_seen
                               ? "the count of what was seen began anew with a resume"
                               : "a resume went on from another count than the one at which the run stood");
    }
    for (const PlainBatch& batch : run_.unfinished) judge(batch, "the step that was not made");
    judge_validations();
    if (!order_.hold() && held_out_) order_.explain_first("what is held out for validation were trained on");
    if (!order_.hold() && !held_out_ && run_.cut > 0 && right_steps_ == run_.cut)
      order_.explain_first("a resumed run went on elsewhere in the data than where the run before it stood");
    for (const Claims* claims : {&order_, &twice_, &documents_, &validation_}) claims->conclude(context_);
  }

 private:
  [[nodiscard]] bool crops() const { return train_.order == nsa::DataOrder::random_crops; }
  [[nodiscard]] bool shuffled() const { return train_.order == nsa::DataOrder::shuffled; }
  // The place in the pass; its batch has as many rows of these lengths, whatever their order.
  [[nodiscard]] const PlainBatch& place() const { return pass_.at(read_ % pass_.size()); }
  // What should have been read there; null where the order is the seed's.
  [[nodiscard]] const PlainBatch* wanted() const { return crops() || shuffled() ? nullptr : &place(); }
  [[nodiscard]] bool in_pass(const Row& row) const {
    return std::any_of(pass_.begin(), pass_.end(), [&](const PlainBatch& batch) {
      return std::find(batch.rows.begin(), batch.rows.end(), row) != batch.rows.end();
    });
  }

  // The first batch is the one that the streams of nsa/train draw from train.seed: the seed must reach them.
  void judge_seed(const PlainBatch& batch, const std::string& where) {
    nsa::train::StreamOptions options;
    options.data = train_.data;
    options.batch_size = train_.batch_size;
    options.seq_len = train_.seq_len;
    options.seed = train_.seed;
    options.validation_share = train_.validation_share;
    options.packed = train_.packed;
    options.order = crops() ? nsa::train::Order::random_crops : nsa::train::Order::shuffled;
    options.epochs = train_.epochs;
    const bool same = plain(nsa::train::open_stream(options)->next()).rows == batch.rows;
    order_.holds(same, where, "rows of the seed", fmt::format("those that train.seed = {} draws", train_.seed),
                 shown(batch.rows.front(), data_.training));
    if (!same) order_.explain("train.seed did not reach the data");
  }

  void judge(const PlainBatch& batch, const std::string& step) {
    const std::string where = fmt::format("{}, batch {}", step, read_ + 1);
    judge_order(batch, where);
    judge_repetition(batch, where);
    judge_documents(batch, where);
    ++read_;
  }

  void judge_order(const PlainBatch& batch, const std::string& where) {
    if (read_ == 0 && (crops() || shuffled())) judge_seed(batch, where);
    for (const Row& row : batch.rows) held_out_ = held_out_ || data_.holds_validation(row);
    const std::size_t rows = crops() ? static_cast<std::size_t>(train_.batch_size) : place().rows.size();
    order_.equal(where, "rows", rows, batch.rows.size());
    for (std::size_t r = 0; r < std::min(rows, batch.rows.size()); ++r) {
      const Row& row = batch.rows[r];
      if (shuffled()) {
        order_.holds(in_pass(row) && row.size() == place().rows[r].size(), where, fmt::format("row {}", r + 1),
                     fmt::format("a row of the pass, {} tokens long", place().rows[r].size()),
                     shown(row, data_.training));
        continue;
      }
      const bool crop = static_cast<std::int64_t>(row.size()) == train_.seq_len + 1 &&
                        data_.training.tokens.find(bytes_of(row)) != std::string::npos;
      order_.holds(crops() ? crop : row == wanted()->rows[r], where, fmt::format("row {}", r + 1),
                   crops() ? "a crop of the training part" : shown(wanted()->rows[r], data_.training),
                   shown(row, data_.training));
    }
  }

  // Rows of equal content are read twice unless the data itself holds them twice.
  void judge_repetition(const PlainBatch& batch, const std::string& where) {
    for (std::size_t r = 0; r < batch.rows.size(); ++r) {
      const Place here{fmt::format("{}, row {}", where, r + 1), row_at(r)};
      const auto [before, fresh] = pass_rows_.emplace(batch.rows[r], here);
      const bool twice_in_data =
          here.wanted != nullptr && before->second.wanted != nullptr && *here.wanted == *before->second.wanted;
      if (fresh || twice_in_data)
        twice_.equal(here.where, "row", true, true);
      else
        twice_.wrong(here.where, "row", "other tokens than in " + before->second.where,
                     shown(batch.rows[r], data_.training));
    }
    if (last_ != nullptr && batch.rows == last_->rows && (wanted() == nullptr || wanted()->rows != last_wanted_->rows))
      twice_.wrong(where, "batch", "another one than before", shown(batch.rows.front(), data_.training));
    this_pass_.push_back(batch.rows);
    if (!crops() && (shuffled() ? this_pass_.size() == pass_.size() : batch.rows == pass_.back().rows)) {
      if (shuffled()) judge_pass(where);
      last_pass_ = std::exchange(this_pass_, {});
      pass_rows_.clear();
    }
    last_ = &batch;
    last_wanted_ = wanted();
  }

  // Seed and pass decide the order together: a pass is neither in the order of the file nor in that of the one before.
  void judge_pass(const std::string& where) {
    Rows of_file;
    for (const PlainBatch& batch : pass_) of_file.push_back(batch.rows);
    order_.holds(this_pass_ != of_file, where, "order of the pass", "shuffled", "the order of the file");
    order_.holds(this_pass_ != last_pass_, where, "order of the pass", "another one than in the pass before",
                 "the same");
  }

  void judge_documents(const PlainBatch& batch, const std::string& where) {
    const PlainBatch* same = with_rows_of(batch, pass_);  // there is no pass of crops
    predictions_ += predicted(same != nullptr ? *same : batch);
    if (!train_.packed) return documents_.equal(where, "borders", Json::array(), batch.cu_seqlens);
    bool sound = batch.cu_seqlens.size() > 1 && batch.cu_seqlens.front() == 0 &&
                 batch.cu_seqlens.back() == static_cast<std::int64_t>(batch.rows.front().size());
    for (std::size_t i = 1; i < batch.cu_seqlens.size(); ++i)
      sound = sound && batch.cu_seqlens[i] > batch.cu_seqlens[i - 1];
    documents_.equal(where, "borders from 0 to the end, none empty", true, sound);
    if (same != nullptr) documents_.equal(where, "borders", same->cu_seqlens, batch.cu_seqlens);
  }

  // Each validation reads the first batches of its split, and no other step validates.
  void judge_validations() {
    const std::vector<PlainBatch>* first = nullptr;
    for (std::size_t i = 0; i < run_.steps.size(); ++i) {
      const auto& validations = run_.steps[i].validations;
      const std::string where = fmt::format("step {}", i + 1);
      const bool due = static_cast<std::int64_t>(i + 1) % train_.eval_every == 0;
      validation_.equal(where, "validations", due ? 1 : 0, validations.size());
      for (const auto& batches : validations) {
        if (first == nullptr) first = &batches;
        // An error may have ended the run, and this with it: judge_ends tells.
        const bool broken_off = i + 1 == run_.steps.size() && run_.starts.back().end.exit_code != 0;
        judge_validation(batches, *first, where, broken_off);
      }
    }
  }

  void judge_validation(const std::vector<PlainBatch>& batches, const std::vector<PlainBatch>& first,
                        const std::string& where, bool broken_off) {
    const auto most = static_cast<std::size_t>(train_.eval_batches);
    if (!broken_off) validation_.equal(where, "batches", crops() ? most : std::min(most, kept_.size()), batches.size());
    for (std::size_t b = 0; b < batches.size(); ++b) {
      const std::string what = fmt::format("batch {}", b + 1);
      if (b >= first.size() || (!crops() && b >= kept_.size())) break;  // too many: told above
      const PlainBatch& should = crops() ? first[b] : kept_[b];
      for (std::size_t r = 0; r < std::min(batches[b].rows.size(), should.rows.size()); ++r) {
        const Row& row = batches[b].rows[r];
        const bool kept_out = data_.validation.tokens.find(bytes_of(row)) != std::string::npos;
        validation_.holds(row == should.rows[r] && kept_out, where, fmt::format("{}, row {}", what, r + 1),
                          shown(should.rows[r], data_.validation), shown(row, data_.validation));
      }
      validation_.equal(where, what + ", rows", should.rows.size(), batches[b].rows.size());
      validation_.equal(where, what + ", borders", should.cu_seqlens, batches[b].cu_seqlens);
    }
  }

  [[nodiscard]] const Row* row_at(std::size_t r) const {
    if (wanted() == nullptr) return nullptr;
    const auto& rows = wanted()->rows;
    return r < rows.size() ? &rows[r] : nullptr;
  }

  struct Place {
    std::string where;
    const Row* wanted = nullptr;
  };

  const nsa::TrainConfig& train_;
  const WrittenRun& run_;
  Context& context_;
  PlainData data_;
  std::vector<PlainBatch> pass_, kept_;  // of one pass; of validation
  std::size_t read_ = 0;                 // batches
  std::int64_t right_steps_ = 0;         // before the first batch that is wrong
  bool held_out_ = false;                // text of validation was read
  std::int64_t predictions_ = 0;
  std::map<Row, Place> pass_rows_;  // read in this pass
  Rows this_pass_, last_pass_;      // as they were read
  const PlainBatch *last_ = nullptr, *last_wanted_ = nullptr;
  Claims order_{"batches of training", codes::kBatchOrder};
  Claims twice_{"rows of a pass", codes::kBatchTwice};
  Claims documents_{"documents of the batches", codes::kDocuments};
  Claims validation_{"batches of validation", codes::kToldOtherwise};
};

}  // namespace

void judge_batches(const WrittenRun& run, Context& context) {
  const bool none = run.unfinished.empty() && run.steps.empty();
  if (none) return;  // judge_ends has said so
  context.phase("batches");
  BatchJudge(run, context).run();
}

}  // namespace suites::training_cases
