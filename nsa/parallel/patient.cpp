#include "nsa/parallel/patient.hpp"

#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <utility>

namespace nsa::parallel {

struct Patient::Inside {
  struct Task {
    std::function<void()> what;
    bool done = false, given_up = false;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::shared_ptr<Task> open;
  bool over = false;

  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return over || open; });
      if (!open) return;
      lock.unlock();
      open->what();
      open->what = nullptr;  // what it owns may be slow to go
      lock.lock();
      open->done = true;
      open.reset();
      changed.notify_all();
    }
  }
};

Patient::Patient() : inside_(std::make_shared<Inside>()) {
  sigset_t all, before;  // signals are for the thread that trains
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([inside = inside_] { inside->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Patient::~Patient() {
  bool is_at_something = false;
  {
    const std::lock_guard<std::mutex> lock(inside_->mutex);
    inside_->over = true;
    is_at_something = inside_->open != nullptr;
    inside_->changed.notify_all();
  }
  if (is_at_something)
    thread_.detach();
  else
    thread_.join();
}

bool Patient::within(std::chrono::milliseconds longest, std::function<void()> what) {
  Inside& in = *inside_;
  const auto until = std::chrono::steady_clock::now() + longest;
  const auto mine = std::make_shared<Inside::Task>(Inside::Task{std::move(what)});
  std::unique_lock<std::mutex> lock(in.mutex);
  in.changed.wait_until(lock, until, [&] { return !in.open || in.open->given_up; });
  if (in.open) return false;
  in.open = mine;
  in.changed.notify_all();
  if (in.changed.wait_until(lock, until, [&] { return mine->done; })) return true;
  mine->given_up = true;
  in.changed.notify_all();
  return false;
}

}  // namespace nsa::parallel
