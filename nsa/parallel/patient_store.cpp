#include "nsa/parallel/patient_store.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace nsa::parallel {

// What the thread that asks and those that want to know share.
struct PatientStore::Asking {
  struct Question {
    std::function<void()> ask;
    bool answered = false, given_up = false;
  };

  c10::intrusive_ptr<c10d::Store> store;
  std::mutex mutex;
  std::condition_variable changed;
  std::shared_ptr<Question> open;
  bool over = false;

  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return over || open; });
      if (!open) return;
      lock.unlock();
      open->ask();
      lock.lock();
      open->answered = true;
      open.reset();
      changed.notify_all();
    }
  }

  // Returns when it has been asked and answered; false when that took too long.
  [[nodiscard]] bool put(std::function<void()> ask, std::chrono::milliseconds longest) {
    const auto until = std::chrono::steady_clock::now() + longest;
    const auto mine = std::make_shared<Question>(Question{std::move(ask)});
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait_until(lock, until, [this] { return !open || open->given_up; });
    if (open) return false;
    open = mine;
    changed.notify_all();
    if (changed.wait_until(lock, until, [&] { return mine->answered; })) return true;
    mine->given_up = true;
    changed.notify_all();
    return false;
  }
};

PatientStore::PatientStore(c10::intrusive_ptr<c10d::Store> inner, std::chrono::milliseconds longest)
    : asking_(std::make_shared<Asking>()), longest_(longest) {
  asking_->store = std::move(inner);
  sigset_t all, before;  // signals are for the thread that trains
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([asking = asking_] { asking->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

PatientStore::~PatientStore() {
  bool waits_for_ever = false;
  {
    const std::lock_guard<std::mutex> lock(asking_->mutex);
    asking_->over = true;
    waits_for_ever = asking_->open != nullptr;
    asking_->changed.notify_all();
  }
  if (waits_for_ever)
    thread_.detach();
  else
    thread_.join();
}

template <typename Answer>
Answer PatientStore::ask(std::function<Answer(c10d::Store&)> question) {
  struct Told {
    std::optional<Answer> answer;
    std::exception_ptr error;
  };
  const auto told = std::make_shared<Told>();
  const auto asked = [store = asking_->store, question = std::move(question), told] {
    try {
      told->answer.emplace(question(*store));
    } catch (...) {
      told->error = std::current_exception();
    }
  };
  if (!asking_->put(asked, longest_))
    throw StoreSilent(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        fmt::format("the store gave no answer within {:.1f} s", std::chrono::duration<double>(longest_).count()));
  if (told->error) std::rethrow_exception(told->error);
  return std::move(*told->answer);
}

c10::intrusive_ptr<c10d::Store> PatientStore::clone() {
  return c10::make_intrusive<PatientStore>(asking_->store->clone(), longest_);
}

void PatientStore::set(const std::string& key, const Bytes& value) {
  (void)ask<bool>([=](c10d::Store& store) {
    store.set(key, value);
    return true;
  });
}

PatientStore::Bytes PatientStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) {
  return ask<Bytes>([=](c10d::Store& store) { return store.compareSet(key, expected, desired); });
}

PatientStore::Bytes PatientStore::get(const std::string& key) {
  return ask<Bytes>([=](c10d::Store& store) { return store.get(key); });
}

int64_t PatientStore::add(const std::string& key, int64_t value) {
  return ask<int64_t>([=](c10d::Store& store) { return store.add(key, value); });
}

bool PatientStore::deleteKey(const std::string& key) {
  return ask<bool>([=](c10d::Store& store) { return store.deleteKey(key); });
}

bool PatientStore::check(const std::vector<std::string>& keys) {
  return ask<bool>([=](c10d::Store& store) { return store.check(keys); });
}

int64_t PatientStore::getNumKeys() {
  return ask<int64_t>([](c10d::Store& store) { return store.getNumKeys(); });
}

void PatientStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

void PatientStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  (void)ask<bool>([=](c10d::Store& store) {
    store.wait(keys, timeout);
    return true;
  });
}

}  // namespace nsa::parallel
