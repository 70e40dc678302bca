#include "nsa/train/prefetch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/statistics.hpp"

namespace nsa::train {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLongestTimeout = 1e6;  // seconds; far from where clocks overflow

// The last durations of many.
class Times {
 public:
  void add(double seconds) {
    if (kept_.size() < kMost) kept_.resize(kept_.size() + 1);
    kept_[static_cast<std::size_t>(count_++) % kMost] = seconds;
  }
  [[nodiscard]] FetchTimes summary() const {
    if (kept_.empty()) return {};
    return {.count = count_,
            .p50_s = base::nearest_rank(kept_, 0.5),
            .p95_s = base::nearest_rank(kept_, 0.95),
            .max_s = *std::max_element(kept_.begin(), kept_.end())};
  }

 private:
  static constexpr std::size_t kMost = 1024;
  std::vector<double> kept_;
  std::int64_t count_ = 0;
};

struct Item {
  Batch batch;
  nlohmann::json after;      // the source's position when it had given this batch
  std::exception_ptr error;  // instead of a batch
  [[nodiscard]] bool last() const { return error || !batch.tokens.defined(); }
};

Item fetch(BatchStream& source) {
  Item item;
  try {
    item.batch = source.next();
    item.after = source.position();
  } catch (...) {  // thrown again where the batch is asked for
    item.error = std::current_exception();
  }
  return item;
}

}  // namespace

// Held by the thread too, so that one that hangs in a read can be left behind.
struct Prefetch::Shared {
  Shared(std::unique_ptr<BatchStream> stream, PrefetchOptions given)
      : source(std::move(stream)), options(given), position(source->position()) {}

  // Runs in the thread, until told to stop or until nothing more can come.
  void fill() {
    std::unique_lock lock(mutex);
    const auto room = [this] { return stop || static_cast<std::int64_t>(ready.size()) < options.depth; };
    while (true) {
      changed.wait(lock, room);
      if (stop || (!ready.empty() && ready.back().last())) break;
      lock.unlock();
      const auto start = Clock::now();
      Item item = fetch(*source);
      lock.lock();
      if (!item.last()) read.add(base::seconds_since(start));
      ready.push_back(std::move(item));
      changed.notify_all();
    }
    running = false;
    changed.notify_all();
  }
  static void start(const std::shared_ptr<Shared>& shared) {
    shared->stop = false;
    shared->running = true;
    try {
      shared->thread = std::thread([shared] { shared->fill(); });
    } catch (...) {
      shared->running = false;
      throw;
    }
  }
  // False when the thread did not come back within the timeout; it then goes on.
  [[nodiscard]] bool stopped() {
    std::unique_lock lock(mutex);
    stop = true;
    changed.notify_all();
    if (!changed.wait_for(lock, timeout(), [this] { return !running; })) {
      stop = false;
      return false;
    }
    lock.unlock();
    if (thread.joinable()) thread.join();
    return true;
  }
  [[nodiscard]] std::chrono::duration<double> timeout() const {
    return std::chrono::duration<double>(options.timeout_s);
  }

  const std::unique_ptr<BatchStream> source;  // the thread's while it runs
  const PrefetchOptions options;
  std::thread thread;
  mutable std::mutex mutex;  // of all that follows
  std::condition_variable changed;
  bool stop = false, running = false;
  std::deque<Item> ready;
  nlohmann::json position;  // the consumer's
  Times waited, read;
};

Prefetch::Prefetch(std::unique_ptr<BatchStream> source, PrefetchOptions options) {
  if (!source) throw std::invalid_argument("prefetch: there is no source");
  if (options.depth < 1 || !(options.timeout_s > 0 && options.timeout_s <= kLongestTimeout))
    throw std::invalid_argument(fmt::format("prefetch: depth {} and timeout {} s; allowed: from 1, above 0 and to {}",
                                            options.depth, options.timeout_s, kLongestTimeout));
  shared_ = std::make_shared<Shared>(std::move(source), options);
  Shared::start(shared_);
}

Prefetch::~Prefetch() {
  if (shared_->stopped()) return;
  const std::lock_guard lock(shared_->mutex);
  shared_->stop = true;
  shared_->thread.detach();
}

Batch Prefetch::next() {
  const auto start = Clock::now();
  std::unique_lock lock(shared_->mutex);
  if (!shared_->changed.wait_for(lock, shared_->timeout(), [this] { return !shared_->ready.empty(); }))
    throw std::runtime_error(fmt::format("data: batch {} did not come within {} s; the source at {}",
                                         shared_->waited.summary().count + 1, shared_->options.timeout_s,
                                         shared_->position.dump()));
  Item& first = shared_->ready.front();
  if (first.error) std::rethrow_exception(first.error);
  if (first.last()) return {};
  Item item = std::move(first);
  shared_->ready.pop_front();
  shared_->position = std::move(item.after);
  shared_->waited.add(base::seconds_since(start));
  shared_->changed.notify_all();
  return std::move(item.batch);
}

nlohmann::json Prefetch::position() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->position;
}

void Prefetch::seek(const nlohmann::json& position) {
  if (!shared_->stopped())
    throw std::runtime_error(fmt::format("data: the source did not come back within {} s", shared_->options.timeout_s));
  try {
    shared_->source->seek(position);
    shared_->ready.clear();
    shared_->position = shared_->source->position();
  } catch (...) {  // what was read ahead is still what comes next
    Shared::start(shared_);
    throw;
  }
  Shared::start(shared_);
}

FetchTimes Prefetch::waited() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->waited.summary();
}

FetchTimes Prefetch::read() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->read.summary();
}

}  // namespace nsa::train
