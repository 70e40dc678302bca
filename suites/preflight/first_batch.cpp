// The first batch, read as training reads it, against a deadline.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <future>
#include <thread>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "nsa/train/text.hpp"
#include "suites/codes.hpp"
#include "suites/preflight/checks.hpp"

namespace suites::preflight_checks {

void first_batch(Context& context, const std::string& what, Reader reader, std::chrono::milliseconds deadline) {
  using Clock = std::chrono::steady_clock;
  const double limit_s = std::chrono::duration<double>(deadline).count();
  const auto promise = std::make_shared<std::promise<at::Tensor>>();
  std::future<at::Tensor> batch = promise->get_future();
  // Detached: a read that never returns must not keep the worker from its next case.
  std::thread([promise, reader = std::move(reader)] {
    try {
      promise->set_value(reader());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();

  const auto begin = Clock::now();
  context.phase("reading " + what);
  while (batch.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready &&
         Clock::now() - begin < deadline) {
    context.progress();
  }
  const double seconds = base::seconds_since(begin);
  if (batch.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    context.finding(codes::kFirstBatch, fmt::format("no batch of {} after {:.2f} s", what, seconds),
                    {{"source", what}, {"deadline_s", limit_s}});
    return;
  }
  context.metric("first_batch", seconds, "s");
  try {
    const at::Tensor tokens = batch.get();
    context.fact("first_batch.shape", std::vector<std::int64_t>(tokens.sizes().begin(), tokens.sizes().end()));
    context.expect("first_batch.tokens", tokens.numel() > 0 && tokens.scalar_type() == at::kLong,
                   fmt::format("the batch of {} holds {} values of type {}", what, tokens.numel(),
                               at::toString(tokens.scalar_type())),
                   codes::kFirstBatch, {{"source", what}});
    context.expect_at_most("first_batch.seconds", seconds, limit_s, "s", codes::kFirstBatch, {{"source", what}});
  } catch (const std::exception& error) {
    context.finding(codes::kFirstBatch, base::first_line(error.what()), {{"source", what}, {"error", error.what()}});
  }
}

void first_batch_of_data(const Subject& subject, Context& context) {
  const nsa::Config config = subject.config(context);
  const std::filesystem::path file = text_file(context.settings(), config);
  const auto read = [file, train = config.train] {
    nsa::train::RandomCrops crops(nsa::train::read_bytes(file), train.batch_size, train.seq_len, train.seed);
    return crops.next();
  };
  const double deadline_s = context.settings().real("preflight.first_batch_s");
  first_batch(context, file.string(), read, std::chrono::milliseconds(static_cast<std::int64_t>(deadline_s * 1000)));
}

}  // namespace suites::preflight_checks
