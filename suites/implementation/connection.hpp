// A process that serves an adapter, with its arena: requests and answers as JSON, tensors as places.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "suites/implementation/arena.hpp"
#include "suites/implementation/call.hpp"
#include "suites/implementation/fields.hpp"
#include "suites/implementation/process.hpp"

namespace suites::implementation {

// Not thread-safe. An arena serves one process: what a process that was killed has left behind writes into its own.
class Connection {
 public:
  using Seconds = Process::Seconds;

  // Starts it; nothing is asked yet. Throws ImplementationError "start".
  Connection(const std::string& python, const std::filesystem::path& host, const std::filesystem::path& adapter);

  // Sends {"id", "do": what} and the fields of `body`, and returns "ok". Throws ImplementationError: what the process
  // broke ("crashed", "silent", "protocol"; it is ended then), or the error that the host tells. What "ok" holds is the
  // caller's to read and, where it is wrong, to end() for.
  Json ask(const char* what, const Json& body, Seconds patience);

  // The arena's part of a request: empties it, puts `tensors` in and adds "arena" and "room" to `body`. Their places.
  Json put(const Named& tensors, Json& body);
  // The tensors of an answer's object {"o": place, "lse": null}; undefined for null. Follows the "arena" of the answer.
  [[nodiscard]] Named take(const Fields& answer, const char* key);

  [[nodiscard]] bool running() const { return process_.running(); }
  void on_wait(std::function<void()> call) { process_.on_wait(std::move(call)); }
  void end() { process_.end(); }
  [[nodiscard]] std::string last_words() { return process_.last_words(); }
  [[nodiscard]] pid_t pid() const { return process_.pid(); }

 private:
  [[noreturn]] void broken(const std::string& message);
  [[noreturn]] void tell(const Json& error);

  Arena arena_;
  Process process_;
  std::int64_t last_id_ = 0;
};

}  // namespace suites::implementation
