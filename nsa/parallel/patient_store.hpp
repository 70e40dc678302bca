// A store of which every question has an end. c10d's TCPStore waits for an answer for ever: where whoever serves it is
// stopped (SIGSTOP) or its machine is out of reach, the connection stays open and says nothing. Not for others than
// nsa/parallel's sources.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <c10/util/Exception.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "nsa/parallel/patient.hpp"

namespace nsa::parallel {

// It did not answer in this time.
class StoreSilent : public c10::DistStoreError {
  using c10::DistStoreError::DistStoreError;
};

// Asks `inner` in a thread of its own, one question after another, and gives up after `longest` (throws StoreSilent).
// While the answer to a question that was given up has not come, every other one fails at once. Thread-safe.
class PatientStore : public c10d::Store {
 public:
  PatientStore(c10::intrusive_ptr<c10d::Store> inner, std::chrono::milliseconds longest);

  using c10d::Store::compareSet;
  using c10d::Store::set;
  using Bytes = std::vector<uint8_t>;
  c10::intrusive_ptr<c10d::Store> clone() override;  // the same
  void set(const std::string& key, const Bytes& value) override;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override;
  Bytes get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  template <typename Answer>
  Answer ask(std::function<Answer(c10d::Store&)> question);

  c10::intrusive_ptr<c10d::Store> store_;
  Patient asking_;
  std::chrono::milliseconds longest_;
};

}  // namespace nsa::parallel
