// A process that serves an adapter, with its arenas: requests and answers as JSON, tensors as places.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "suites/implementation/arena.hpp"
#include "suites/implementation/call.hpp"
#include "suites/implementation/device_arena.hpp"
#include "suites/implementation/fields.hpp"
#include "suites/implementation/process.hpp"

namespace suites::implementation {

// Not thread-safe. An arena serves one process: what a process that was killed has left behind writes into its own.
class Connection {
 public:
  using Seconds = Process::Seconds;

  // Starts it; nothing is asked yet. Tensors of the device of `shared` cross in memory of that device where that can be
  // had, else they are copied through the host's. Throws ImplementationError "start".
  Connection(const std::string& python, const std::filesystem::path& host, const std::filesystem::path& adapter,
             std::optional<DeviceMemory> shared = std::nullopt);

  // Sends {"id", "do": what} and the fields of `body`, and returns "ok". Throws ImplementationError: what the process
  // broke ("crashed", "silent", "protocol"; it is ended then), or the error that the host tells. What "ok" holds is the
  // caller's to read and, where it is wrong, to end() for.
  Json ask(const char* what, const Json& body, Seconds patience);

  // The arena's part of a request: empties it, puts `tensors` in and adds "arena" and "room" to `body`. Their places.
  Json put(const Named& tensors, Json& body);
  // The same in memory of their device where that can be had; then "device_room" is added too. `answers` is what may
  // come back: behind the tensors there is room for it, and what needs more comes back in the host's memory. Asks the
  // process to open memory that it has not seen yet; what it breaks by that is thrown as by ask().
  Json share(const Named& tensors, Json& body, const std::vector<Form>& answers);
  // The tensors of an answer's object {"o": place, "lse": null}; undefined for null. Each is on the CPU or on the
  // device, as the other side has put it. Follows the "arena" of the answer.
  [[nodiscard]] Named take(const Fields& answer, const char* key);

  // How tensors crossed until now: "shared memory", "CUDA IPC", "host copies (WHY)".
  [[nodiscard]] std::string transport() const;

  [[nodiscard]] bool running() const { return process_.running(); }
  void on_wait(std::function<void()> call) { process_.on_wait(std::move(call)); }
  void end();
  [[nodiscard]] std::string last_words() { return process_.last_words(); }
  [[nodiscard]] pid_t pid() const { return process_.pid(); }

 private:
  [[noreturn]] void broken(const std::string& message);
  [[noreturn]] void tell(const Json& error);
  [[nodiscard]] bool reserve(const Named& tensors, const std::vector<Form>& answers);
  [[nodiscard]] std::string open_there(at::Device device);
  [[nodiscard]] Json put_into(bool device, const Named& tensors, Json& body);

  Arena arena_;
  std::optional<DeviceArena> device_arena_;  // freed after the process that has it open has ended
  bool shared_ = false;                      // tensors have crossed in it
  std::string why_copied_;                   // why tensors of a GPU go through the host's memory; "": they do not
  Process process_;
  std::int64_t last_id_ = 0;
};

}  // namespace suites::implementation
