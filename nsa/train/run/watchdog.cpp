#include "nsa/train/run/watchdog.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/stacks.hpp"
#include "base/streams.hpp"
#include "nsa/train/run/exit_code.hpp"
#include "nsa/train/run/hang_judge.hpp"

namespace nsa::train {

namespace {

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

Watchdog::Watchdog(Options options, const Activity& activity, Heartbeat& heartbeat)
    : options_(std::move(options)), activity_(activity), heartbeat_(heartbeat) {
  // Signals are for the thread that trains.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::run() {
  HangJudge judge(options_.hang_s);
  const bool watches = options_.hang_s > 0;
  const auto interval = std::chrono::duration<double>(base::HangClock::look_s(watches ? options_.hang_s : kBeat_s));
  double last_beat = seconds_of(CLOCK_MONOTONIC);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!wake_.wait_for(lock, interval, [this] { return over_; })) {
    const double now = seconds_of(CLOCK_MONOTONIC);
    const Liveness liveness =
        watches ? judge.look(now, seconds_of(CLOCK_PROCESS_CPUTIME_ID), activity_.look()) : Liveness::fine;
    if (liveness == Liveness::slow) record("slow", judge.silent_s(now));
    if (liveness == Liveness::hung) {
      record("hung", judge.silent_s(now));
      if (options_.hung)
        options_.hung(fmt::format("no progress and no work for {:.0f} s in its phase '{}'", judge.silent_s(now),
                                  activity_.look().phase));
      ::_exit(static_cast<int>(ExitCode::hung));
    }
    if (now - last_beat >= kBeat_s) {
      record("beat", judge.silent_s(now));
      last_beat = now;
    }
  }
}

void Watchdog::record(std::string_view event, double silent_s) {
  const Activity::Snapshot activity = activity_.look();
  nlohmann::json fields = {{"silent_s", silent_s}, {"step_s", activity.step_s}, {"median_step_s", activity.median_s}};
  try {
    if (event != "beat") {
      const auto file = options_.folder / fmt::format("stacks_{}_step_{}.txt", event, activity.steps + 1);
      base::err(
          "nsa-train: {} in step {}, phase {}: {:.1f} s in the step (median {:.3g} s), no sign of life "
          "for {:.1f} s; stacks in {}\n",
          event == "hung" ? "HUNG" : "SLOW", activity.steps + 1, activity.phase, activity.step_s, activity.median_s,
          silent_s, file.string());
      fields["stacks"] = file.filename().string();
      base::write_whole(file, base::all_stacks());
    }
    heartbeat_.write(event, fields);
  } catch (const std::exception& error) {  // the thread that trains will meet the same disk, and end the run
    base::err("nsa-train: the watchdog's record '{}' could not be written: {}\n", event, error.what());
  }
}

}  // namespace nsa::train
