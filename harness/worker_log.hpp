// Standard output and error of a worker: the head goes to a file of bounded size, the last lines stay at hand as
// evidence. A flood is drained, never blocks anybody and never fills the disk.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "harness/process.hpp"

namespace harness {

class WorkerLog {
 public:
  // Throws InfrastructureError when the file or its folder is a link: that leads to what is not the run's.
  WorkerLog(const std::filesystem::path& file, std::size_t limit_bytes);
  ~WorkerLog();  // writes the tail of what was cut off
  WorkerLog(const WorkerLog&) = delete;
  WorkerLog& operator=(const WorkerLog&) = delete;

  void add(std::string_view bytes);
  // Of what was printed since the last heading (heading()), so that a case's evidence is its own.
  [[nodiscard]] std::vector<std::string> last_lines() const;

  // What the worker prints when a case begins. Only inside the same stream is the order of things certain: events
  // travel on another pipe.
  [[nodiscard]] static std::string heading(const std::string& case_id);

 private:
  void put(std::string_view bytes);

  Fd fd_;
  std::size_t limit_, written_ = 0, dropped_ = 0;
  std::string tail_;
};

}  // namespace harness
