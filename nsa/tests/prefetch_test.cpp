#include "nsa/train/prefetch.hpp"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <stdexcept>
#include <thread>

#include "nsa/tests/data_fixtures.hpp"

namespace nsa::train {
namespace {

using fixtures::drain;
using fixtures::expect_resumable;
using fixtures::same;
using fixtures::thrown;
using fixtures::write_file;
using testing::HasSubstr;
using namespace std::chrono_literals;

// Counts upwards; can be made to fail at a batch, to end, or to hang until it is let go.
class Counter : public BatchStream {
 public:
  struct Behaviour {
    std::int64_t fail_at = -1, end_at = -1, hang_at = -1;
    std::shared_future<void> released{};
    std::shared_ptr<std::atomic<std::int64_t>> made = std::make_shared<std::atomic<std::int64_t>>(0);
  };
  explicit Counter(Behaviour behaviour) : behaviour_(std::move(behaviour)) {}
  Batch next() override {
    if (next_ == behaviour_.hang_at) behaviour_.released.wait();
    if (next_ == behaviour_.fail_at) throw std::runtime_error("data.txt: batch " + std::to_string(next_));
    if (next_ == behaviour_.end_at) return {};
    ++*behaviour_.made;
    return {.tokens = at::full({1, 2}, next_++, at::kLong), .cu_seqlens = {}};
  }
  [[nodiscard]] nlohmann::json position() const override { return {{"next", next_}}; }
  void seek(const nlohmann::json& position) override {
    if (!position.contains("next")) throw std::invalid_argument("next is missing");
    next_ = position["next"];
  }

 private:
  Behaviour behaviour_;
  std::int64_t next_ = 0;
};

std::int64_t number(const Batch& batch) {
  return batch.tokens.defined() ? batch.tokens[0][0].item<std::int64_t>() : -1;
}

StreamOptions text() {
  StreamOptions options;
  options.data = write_file("text", "one\n\ntwo three\n\nfour " + std::string(200, 'x') + "\n\nfive").string();
  options.seq_len = 8;
  options.packed = true;
  return options;
}

TEST(Prefetch, GivesWhatTheSourceGivesAndItsPositions) {
  const auto plain = open_stream(text());
  Prefetch prefetch(open_stream(text()));
  for (bool more = true; more;) {
    EXPECT_EQ(prefetch.position(), plain->position());
    const auto batch = plain->next();
    ASSERT_TRUE(same(prefetch.next(), batch));
    more = batch.tokens.defined();
  }
  EXPECT_FALSE(prefetch.next().tokens.defined());
  EXPECT_EQ(prefetch.position(), plain->position());
}

TEST(Prefetch, GoesOnAtEveryPositionOfTheConsumer) {
  for (const std::int64_t depth : {1, 3, 100})
    expect_resumable([&] { return std::make_unique<Prefetch>(open_stream(text()), PrefetchOptions{.depth = depth}); });
}

TEST(Prefetch, ReadsAheadAsFarAsItMayAndNoFurther) {
  Counter::Behaviour behaviour;
  Prefetch prefetch(std::make_unique<Counter>(behaviour), {.depth = 3, .timeout_s = 60});
  for (std::int64_t taken = 0; taken < 5; ++taken) {
    for (int i = 0; i < 2000 && *behaviour.made < taken + 3; ++i) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(*behaviour.made, taken + 3);
    EXPECT_EQ(prefetch.position()["next"], taken);
    EXPECT_EQ(number(prefetch.next()), taken);
  }
}

TEST(Prefetch, AnExceptionArrivesInItsTurnAndStays) {
  Prefetch prefetch(std::make_unique<Counter>(Counter::Behaviour{.fail_at = 2}));
  EXPECT_EQ(number(prefetch.next()), 0);
  EXPECT_EQ(number(prefetch.next()), 1);
  for (int again = 0; again < 3; ++again)
    EXPECT_EQ(thrown<std::runtime_error>([&] { (void)prefetch.next(); }), "data.txt: batch 2");
  EXPECT_EQ(prefetch.position()["next"], 2);
  prefetch.seek({{"next", 5}});  // beyond what cannot be read
  EXPECT_EQ(number(prefetch.next()), 5);
}

TEST(Prefetch, TheEndStaysTheEnd) {
  Prefetch prefetch(std::make_unique<Counter>(Counter::Behaviour{.end_at = 2}));
  EXPECT_EQ(drain(prefetch).size(), 2U);
  EXPECT_FALSE(prefetch.next().tokens.defined());
  prefetch.seek({{"next", 1}});
  EXPECT_EQ(drain(prefetch).size(), 1U);
}

TEST(Prefetch, ARefusedPositionChangesNothing) {
  Prefetch prefetch(std::make_unique<Counter>(Counter::Behaviour{.end_at = 6}), {.depth = 2, .timeout_s = 60});
  EXPECT_EQ(number(prefetch.next()), 0);
  EXPECT_EQ(thrown<std::invalid_argument>([&] { prefetch.seek({{"other", 1}}); }), "next is missing");
  EXPECT_EQ(prefetch.position()["next"], 1);
  for (const std::int64_t expected : {1, 2, 3, 4, 5, -1, -1}) EXPECT_EQ(number(prefetch.next()), expected);
}

TEST(Prefetch, ALateBatchIsAnErrorAndIsNotLost) {
  for (const std::int64_t late : {0, 2}) {  // the first one, and one in mid-run
    std::promise<void> release;
    Prefetch prefetch(std::make_unique<Counter>(Counter::Behaviour{.hang_at = late, .released = release.get_future()}),
                      {.depth = 2, .timeout_s = 0.2});
    for (std::int64_t i = 0; i < late; ++i) EXPECT_EQ(number(prefetch.next()), i);
    const auto what = thrown<std::runtime_error>([&] { (void)prefetch.next(); });
    EXPECT_THAT(what, HasSubstr("batch " + std::to_string(late + 1) + " did not come within 0.2 s"));
    EXPECT_THAT(what, HasSubstr("{\"next\":" + std::to_string(late) + "}"));
    EXPECT_THAT(thrown<std::runtime_error>([&] { prefetch.seek({{"next", 0}}); }), HasSubstr("did not come back"));
    release.set_value();
    for (std::int64_t i = late; i < late + 5; ++i) EXPECT_EQ(number(prefetch.next()), i);
  }
}

TEST(Prefetch, AHangingSourceIsLeftBehind) {
  std::promise<void> release;
  const auto made = std::make_shared<std::atomic<std::int64_t>>(0);
  const auto start = std::chrono::steady_clock::now();
  {
    Prefetch prefetch(
        std::make_unique<Counter>(Counter::Behaviour{.hang_at = 1, .released = release.get_future(), .made = made}),
        {.depth = 4, .timeout_s = 0.1});
    EXPECT_EQ(number(prefetch.next()), 0);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);  // it came back at all
  release.set_value();
  for (int i = 0; i < 2000 && made.use_count() > 1; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(made.use_count(), 1);  // the thread has ended and its source is gone
}

TEST(Prefetch, CountsAndMeasuresWhatItFetched) {
  Prefetch prefetch(std::make_unique<Counter>(Counter::Behaviour{.end_at = 1500}));
  EXPECT_EQ(prefetch.waited().count, 0);
  EXPECT_EQ(prefetch.waited().p95_s, 0);
  EXPECT_EQ(drain(prefetch).size(), 1500U);
  for (const FetchTimes& times : {prefetch.waited(), prefetch.read()}) {
    EXPECT_EQ(times.count, 1500);
    EXPECT_GE(times.p50_s, 0);
    EXPECT_LE(times.p50_s, times.p95_s);
    EXPECT_LE(times.p95_s, times.max_s);
    EXPECT_GT(times.max_s, 0);
  }
}

TEST(Prefetch, RefusesOptionsThatMakeNoSense) {
  for (const PrefetchOptions options :
       {PrefetchOptions{.depth = 0}, PrefetchOptions{.timeout_s = 0},
        PrefetchOptions{.timeout_s = std::numeric_limits<double>::quiet_NaN()}, PrefetchOptions{.timeout_s = 1e30}})
    EXPECT_THAT(
        thrown<std::invalid_argument>([&] { Prefetch(std::make_unique<Counter>(Counter::Behaviour{}), options); }),
        HasSubstr("allowed: from 1, above 0"));
}

}  // namespace
}  // namespace nsa::train
