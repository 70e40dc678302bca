// What a worker says about its cases, checked against what it may say now and handed to the recorder. The same for a
// worker process and for cases that run in this process (--isolation none).
#pragma once

#include <span>
#include <string>

#include "harness/protocol.hpp"
#include "harness/recorder.hpp"

namespace harness {

class CaseFeed {
 public:
  // `cases` in the order in which the worker was told to run them.
  CaseFeed(Recorder& recorder, std::string suite, std::span<const PlannedCase> cases, std::uint64_t master_seed,
           int worker);

  // One event about a case. Throws ProtocolViolation when it is not the worker's to say now.
  void accept(const Json& event);

  // Ends the case in flight with a finding; when the worker is between cases, the one that it would have begun next,
  // so that whatever goes wrong is charged to a case and the rest can go on.
  void blame(const FindingNote& note, const CaseEnd& end);

  // Ends the case in flight, if there is one, without blame.
  void cancel(const CaseEnd& end);

  [[nodiscard]] std::size_t ended() const { return ended_; }  // how many of `cases`
  [[nodiscard]] bool finished() const { return ended_ == cases_.size(); }

 private:
  void begin(const Json& event);
  void end(const Json& event);
  void finding(const Json& event);

  Recorder& recorder_;
  std::string suite_;
  std::span<const PlannedCase> cases_;
  std::uint64_t master_seed_;
  int worker_;
  std::size_t ended_ = 0;
  bool retried_ = false;  // the case in flight
};

}  // namespace harness
