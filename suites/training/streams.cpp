#include "suites/training/streams.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "nsa/train/prefetch.hpp"
#include "suites/codes.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/claims.hpp"
#include "suites/training/made_text.hpp"
#include "suites/training/plain_data.hpp"
#include "suites/training/run_witness.hpp"
#include "suites/training/stream_mistakes.hpp"

namespace suites::training_cases {

namespace {

namespace fs = std::filesystem;
using harness::Context;
using nsa::train::Order;
using nsa::train::Split;
using nsa::train::StreamOptions;

constexpr std::size_t kMost = 1000;  // batches of a stream that should have ended long before

Batches rest_of(nsa::train::BatchStream& stream, std::size_t most = kMost) {
  Batches all;
  while (all.size() < most) {
    const nsa::train::Batch batch = stream.next();
    if (!batch.tokens.defined()) break;
    all.push_back(plain(batch));
  }
  return all;
}

// One kind of data, in one order.
class StreamJudge {
 public:
  StreamJudge(std::string name, StreamOptions options, const OpenStream& open)
      : options_(std::move(options)),
        open_(open),
        claims_("batches of " + name, codes::kBatchOrder),
        documents_("documents of " + name, codes::kDocuments) {}

  void judge(Context& context) {
    nsa::TrainConfig told;
    told.data = options_.data;
    told.batch_size = options_.batch_size;
    told.seq_len = options_.seq_len;
    told.validation_share = options_.validation_share;
    told.packed = options_.packed;
    told.skip_bad_lines = options_.skip_bad_lines;
    const PlainData data(told);
    const Batches training = data.training.batches(told), validation = data.validation.batches(told);
    const Batches read = pass();
    if (options_.order == Order::sequential)
      compare("a pass", training, read, data.training, mistake_in_pass(options_, data, training, read));
    else
      expect_same_rows("a pass", training, read, mistake_in_pass(options_, data, training, read));
    StreamOptions kept = options_;
    kept.split = Split::validation;
    kept.order = Order::sequential;
    compare("validation", validation, rest_of(*open_(kept)), data.validation,
            rest_of(*open_(kept)) == read ? "validation read what is trained on" : "");
    judge_two_passes(read, data.training);
    for (const std::size_t taken : {std::size_t{1}, read.size() / 2})
      judge_continuation(read, std::min(taken, read.size()), data.training);
    claims_.conclude(context);
    if (options_.packed) documents_.conclude(context);
  }

 private:
  [[nodiscard]] Batches pass(std::int64_t epochs = 1) const {
    StreamOptions options = options_;
    options.epochs = epochs;
    return rest_of(*open_(options));
  }

  void compare(const std::string& where, const Batches& wanted, const Batches& read, const PlainSplit& split,
               const std::string& as_if) {
    const bool sound = claims_.hold();
    claims_.equal(where, "batches", wanted.size(), read.size());
    for (std::size_t i = 0; i < std::min(wanted.size(), read.size()); ++i) {
      const std::string here = fmt::format("{}, batch {}", where, i + 1);
      claims_.equal(here, "rows", wanted[i].rows.size(), read[i].rows.size());
      for (std::size_t r = 0; r < std::min(wanted[i].rows.size(), read[i].rows.size()); ++r)
        claims_.holds(wanted[i].rows[r] == read[i].rows[r], here, fmt::format("row {}", r + 1),
                      shown(wanted[i].rows[r], split), shown(read[i].rows[r], split));
      if (wanted[i].rows == read[i].rows) documents_.equal(here, "borders", wanted[i].cu_seqlens, read[i].cu_seqlens);
    }
    if (sound && !claims_.hold() && !as_if.empty()) claims_.explain_first(as_if);
  }

  void expect_same_rows(const std::string& where, const Batches& wanted, const Batches& read,
                        const std::string& as_if) {
    const bool sound = claims_.hold();
    const auto sorted = [](Rows rows) {
      std::sort(rows.begin(), rows.end());
      return rows;
    };
    claims_.equal(where, "batches", wanted.size(), read.size());
    claims_.holds(sorted(rows_of(wanted)) == sorted(rows_of(read)), where, "rows", "each of the data once", "others");
    if (sound && !claims_.hold() && !as_if.empty()) claims_.explain_first(as_if);
    claims_.holds(wanted != read, where, "order", "shuffled", "that of the file");
  }

  // The second pass is the first again, or in another order.
  void judge_two_passes(const Batches& first, const PlainSplit& split) {
    const Batches both = pass(2);
    claims_.equal("two passes", "batches", 2 * first.size(), both.size());
    if (both.size() != 2 * first.size()) return;
    const auto half = both.begin() + static_cast<std::ptrdiff_t>(first.size());
    compare("the first of two passes", first, {both.begin(), half}, split, "");
    if (options_.order == Order::sequential) return compare("the second pass", first, {half, both.end()}, split, "");
    const bool sound = claims_.hold();
    claims_.holds(first != Batches(half, both.end()), "the second pass", "order", "another one than in the first",
                  "the same");
    if (sound && !claims_.hold()) claims_.explain_first("every pass were shuffled by the same numbers");
  }

  // A second stream goes on where the first one stands, which has read ahead.
  void judge_continuation(const Batches& all, std::size_t taken, const PlainSplit& split) {
    nsa::train::Prefetch before(open_(options_)), after(open_(options_));
    (void)rest_of(before, taken);
    after.seek(before.position());
    compare(fmt::format("continued after {} batches", taken),
            {all.begin() + static_cast<std::ptrdiff_t>(taken), all.end()}, rest_of(after), split,
            "a resumed run went on elsewhere in the data than where the run before it stood");
  }

  StreamOptions options_;
  const OpenStream& open_;
  Claims claims_, documents_;
};

// Crops begin anywhere in the training part, its two ends included: in a text that has room for five, all five come.
void judge_starts_of_crops(Claims& claims, StreamOptions options, const OpenStream& open, const fs::path& folder) {
  constexpr std::size_t kStarts = 5, kDrawn = 64;
  options.data = (folder / "short.txt").string();
  options.order = Order::random_crops;
  options.validation_share = 0;
  const std::size_t length = static_cast<std::size_t>(options.seq_len) + kStarts;
  const std::string text = made_prose(length).substr(0, length);
  write_text(options.data, text);
  std::set<std::size_t> begun;
  for (const PlainBatch& batch : rest_of(*open(options), kDrawn))
    for (const auto& row : batch.rows) begun.insert(text.find(bytes_of(row)));
  const bool sound = claims.hold();
  for (std::size_t start = 0; start < kStarts; ++start)
    claims.holds(begun.contains(start), "a text with room for five crops", fmt::format("crop from byte {}", start),
                 fmt::format("among {} draws", kDrawn * static_cast<std::size_t>(options.batch_size)), "never");
  if (sound && !claims.hold() && begun.size() + 1 == kStarts)
    claims.explain_first(begun.contains(0) ? "the last crop of a text were never drawn"
                                           : "the first crop of a text were never drawn");
}

// Of a stream without an end, of which `all` are the first batches.
void judge_endless_continuation(Claims& claims, const StreamOptions& options, const OpenStream& open,
                                const Batches& all) {
  constexpr std::size_t kTaken = 3;
  if (all.size() <= kTaken) return claims.wrong("a stream without an end", "batches", "more", all.size());
  const auto before = open(options), after = open(options);
  (void)rest_of(*before, kTaken);
  after->seek(before->position());
  claims.holds(rest_of(*after, all.size() - kTaken) == Batches(all.begin() + kTaken, all.end()),
               fmt::format("continued after {} batches", kTaken), "batches", "those that follow", "others");
}

void judge_crops(Context& context, StreamOptions options, const OpenStream& open) {
  Claims claims("batches of random crops", codes::kBatchOrder);
  options.order = Order::random_crops;
  nsa::TrainConfig told;
  told.data = options.data;
  told.validation_share = options.validation_share;
  const PlainData data(told);
  constexpr std::size_t kAll = 8;
  const Batches all = rest_of(*open(options), kAll), again = rest_of(*open(options), kAll);
  claims.holds(all == again, "the same seed", "batches", "the same", "others");
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const auto& row : all[i].rows)
      claims.holds(static_cast<std::int64_t>(row.size()) == options.seq_len + 1 &&
                       data.training.tokens.find(bytes_of(row)) != std::string::npos,
                   fmt::format("batch {}", i + 1), "row", "a crop of the training part", shown(row, data.training));
  options.seed += 1;
  claims.holds(all != rest_of(*open(options), kAll), "another seed", "batches", "others", "the same");
  options.seed -= 1;
  judge_endless_continuation(claims, options, open, all);
  judge_starts_of_crops(claims, options, open, fs::path(options.data).parent_path());
  claims.conclude(context);
}

void judge_synthetic(Context& context, const StreamOptions& base, const OpenStream& open) {
  constexpr std::size_t kAll = 6;
  StreamOptions options = base;
  options.data = "synthetic";
  options.vocab = 50;
  StreamOptions kept = options, other = options;
  kept.split = Split::validation;
  other.seed += 1;
  Claims claims("batches of random tokens", codes::kBatchOrder);
  const Batches all = rest_of(*open(options), kAll), validation = rest_of(*open(kept), kAll);
  claims.holds(all == rest_of(*open(options), kAll), "the same seed", "batches", "the same", "others");
  claims.holds(all != rest_of(*open(other), kAll), "another seed", "batches", "others", "the same");
  std::vector<std::int64_t> counts(static_cast<std::size_t>(options.vocab));
  std::set<std::vector<std::int64_t>> rows;
  std::size_t count = 0;
  for (const Batches* batches : {&all, &validation})
    for (const PlainBatch& batch : *batches)
      for (const auto& row : batch.rows) {
        ++count;
        rows.insert(row);
        for (const std::int64_t token : row) {
          const bool known = token >= 0 && token < options.vocab;
          claims.holds(known, "every batch", "token", fmt::format("below {}", options.vocab), token);
          if (known) ++counts[static_cast<std::size_t>(token)];
        }
      }
  claims.equal("training and validation", "rows that differ", count, rows.size());
  if (!claims.hold() && all == validation) claims.explain_first("validation read what is trained on");
  if (!claims.hold() && all.size() > 1 && all[0] == all[1])
    claims.explain_first("every batch were the first one again");
  // Uniform: 1200 draws and more of 50 tokens leave none out.
  const auto never = std::find(counts.begin(), counts.end(), 0);
  const bool sound = claims.hold();
  claims.holds(never == counts.end(), "every batch", "tokens", "all of them", "some never");
  if (sound && !claims.hold())
    claims.explain_first(fmt::format("token {} of {} were never drawn", never - counts.begin(), options.vocab));
  judge_endless_continuation(claims, options, open, all);
  claims.conclude(context);
}

// A line that holds no document ends the run with an error that names it, read ahead or not, and every time
// it is asked.
void judge_bad_line(Context& context, const StreamOptions& options, const OpenStream& open) {
  Claims claims("a JSONL with a bad line", codes::kBatchOrder);
  for (const bool ahead : {false, true}) {
    const std::string where = ahead ? "read ahead" : "read in its turn";
    std::unique_ptr<nsa::train::BatchStream> stream = open(options);
    if (ahead) stream = std::make_unique<nsa::train::Prefetch>(std::move(stream));
    for (const char* when : {"the first time", "asked again"}) {
      std::string told;
      std::size_t before = 0;
      try {
        before = rest_of(*stream).size();
      } catch (const std::exception& error) {
        told = error.what();
      }
      const bool sound = claims.hold();
      claims.holds(told.find(options.data + ":") != std::string::npos, fmt::format("{}, {}", where, when), "end",
                   told.empty() ? fmt::format("the end of the data, after {} batches", before) : told,
                   "an error that names the file and the line");
      if (sound && !claims.hold() && told.empty()) claims.explain_first("a line that holds no document ended the data");
    }
  }
  claims.conclude(context);
}

}  // namespace

void judge_streams(Context& context, const OpenStream& open) {
  const fs::path folder = context.run_folder() / fmt::format("streams-{}", ::getpid());
  const std::string lines = (folder / "documents.jsonl").string(), text = (folder / "paragraphs.txt").string(),
                    prose = (folder / "prose.txt").string();
  write_text(lines, made_documents());
  write_text(text, made_paragraphs());
  write_text(prose, made_prose(60'000));
  StreamOptions options;
  options.seq_len = 48;
  options.batch_size = 2;
  options.seed = 20261;
  options.validation_share = 0.25;
  for (const std::string& file : {lines, text})
    for (const bool packed : {false, true})
      for (const Order order : {Order::sequential, Order::shuffled}) {
        StreamOptions own = options;
        own.data = file;
        own.packed = packed;
        own.batch_size = packed ? 1 : 2;
        own.order = order;
        const std::string name = fmt::format("{}{}{}", packed ? "packed " : "", file == lines ? "JSONL" : "text",
                                             order == Order::shuffled ? ", shuffled" : "");
        context.phase(name);
        StreamJudge(name, own, open).judge(context);
      }
  context.phase("an end without a newline");
  const std::string unended = (folder / "unended.jsonl").string();
  std::string without = made_documents();
  without.pop_back();
  write_text(unended, without);
  StreamOptions last = options;
  last.data = unended;
  StreamJudge("JSONL without a newline at its end", last, open).judge(context);
  context.phase("bad lines");
  const std::string bad = (folder / "bad.jsonl").string();
  write_text(bad, made_documents_and_bad_lines());
  StreamOptions skipping = options;
  skipping.data = bad;
  judge_bad_line(context, skipping, open);
  skipping.skip_bad_lines = true;
  StreamJudge("JSONL whose bad lines are passed over", skipping, open).judge(context);
  // Longer than any buffer that a reader fills at once.
  context.phase("long lines");
  const std::string long_lines = (folder / "long.jsonl").string();
  write_text(long_lines, made_long_documents());
  StreamOptions wide = options;
  wide.data = long_lines;
  wide.seq_len = 4096;
  StreamJudge("JSONL of long lines", wide, open).judge(context);
  context.phase("random crops");
  options.data = prose;
  judge_crops(context, options, open);
  context.phase("random tokens");
  judge_synthetic(context, options, open);
  fs::remove_all(folder);
}

void streams(const Subject&, Context& context) { judge_streams(context, nsa::train::open_stream); }

}  // namespace suites::training_cases
