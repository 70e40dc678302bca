#include "harness/probe.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <optional>

#include "base/streams.hpp"
#include "harness/journal_writer.hpp"
#include "harness/process.hpp"
#include "harness/protocol.hpp"

namespace harness {

namespace {

constexpr const char* kSelf = "/proc/self/exe";

std::optional<DeviceProbe> device_event(LineReader& reader) {
  std::string line;
  while (reader.next(line)) {
    const Json event = Json::parse(line);
    if (event.at("event") != "device") continue;
    return DeviceProbe{event.at("cuda_usable").get<bool>(), event.at("why_not").get<std::string>(),
                       event.at("provenance")};
  }
  return std::nullopt;
}

// ": " and the last thing that the worker said, if it said anything.
std::string last_words(const std::string& output) {
  const std::string line = base::last_line(output.substr(0, output.find_last_not_of('\n') + 1));
  return line.empty() ? "" : ": " + line;
}

}  // namespace

DeviceProbe probe_in_worker(double limit_s, const std::filesystem::path& executable) try {
  WorkOrder order;
  order.probe = true;
  order.supervisor = getpid();
  const std::string program = executable.empty() ? kSelf : executable.string();
  Process process(program, {program, kWorkerVerb});
  process.give(to_text(order));
  LineReader reader;
  std::string output;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  for (bool ended = false;;) {
    pollfd fds[] = {{process.output_fd(), POLLIN, 0}, {process.event_fd(), POLLIN, 0}, {process.pid_fd(), POLLIN, 0}};
    poll(fds, std::size(fds), 100);
    std::string bytes;
    read_available(process.output_fd(), output);
    read_available(process.event_fd(), bytes);
    reader.feed(bytes);
    if (const auto found = device_event(reader)) return *found;
    if (ended) break;
    if (std::chrono::steady_clock::now() > deadline)
      return {false, fmt::format("the worker that looks for devices did not answer within {:g} s", limit_s), {}};
    ended = (fds[2].revents & POLLIN) != 0;  // once more, for what it said last
  }
  const Exit exit = process.reap();
  const std::string how = exit.by_signal ? fmt::format("died by {}", signal_name(exit.value))
                                         : fmt::format("exited with status {}", exit.value);
  return {false, fmt::format("the worker that looks for devices {}{}", how, last_words(output)), {}};
} catch (const std::exception& error) {
  return {false, fmt::format("the worker that looks for devices: {}", error.what()), {}};
}

}  // namespace harness
