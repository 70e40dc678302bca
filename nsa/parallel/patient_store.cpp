#include "nsa/parallel/patient_store.hpp"

#include <fmt/format.h>

#include <exception>
#include <optional>
#include <utility>

namespace nsa::parallel {

PatientStore::PatientStore(c10::intrusive_ptr<c10d::Store> inner, std::chrono::milliseconds longest)
    : store_(std::move(inner)), longest_(longest) {}

template <typename Answer>
Answer PatientStore::ask(std::function<Answer(c10d::Store&)> question) {
  struct Told {
    std::optional<Answer> answer;
    std::exception_ptr error;
  };
  const auto told = std::make_shared<Told>();
  const auto asked = [store = store_, question = std::move(question), told] {
    try {
      told->answer.emplace(question(*store));
    } catch (...) {
      told->error = std::current_exception();
    }
  };
  if (!asking_.within(longest_, asked))
    throw StoreSilent(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        fmt::format("the store gave no answer within {:.1f} s", std::chrono::duration<double>(longest_).count()));
  if (told->error) std::rethrow_exception(told->error);
  return std::move(*told->answer);  // NOLINT(bugprone-unchecked-optional-access): no error, so an answer
}

c10::intrusive_ptr<c10d::Store> PatientStore::clone() {
  return c10::make_intrusive<PatientStore>(store_->clone(), longest_);
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
