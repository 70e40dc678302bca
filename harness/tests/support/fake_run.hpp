// Runs the fake program (fake_program.cpp) as a user would, in a folder of its own, and reads what it left.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "reports/model.hpp"

namespace harness::tests {

// A folder that goes away with the test.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

[[nodiscard]] std::string read_text(const std::filesystem::path& file);
[[nodiscard]] std::string code_of(const reports::Case& c);  // of its first finding, or "none"

class FakeRun {
 public:
  // Waits for its end.
  int operator()(const std::vector<std::string>& words);
  // Does not wait; its output goes where `out` and `err` are read from.
  pid_t start(const std::vector<std::string>& words);
  int wait(pid_t pid);  // exit code, 128 + signal when it was killed

  // Where its standard output and error go: a file or named pipe in `folder`, "closed", "broken" (a pipe that nobody
  // reads), or "beyond the limit" (a file that takes no byte more, which shows when it is written).
  std::string out_to = "stdout", err_to = "stderr";

  std::filesystem::path group;  // a control group that it is started in; none when empty

  [[nodiscard]] std::string out() const { return read_text(folder.path() / "stdout"); }
  [[nodiscard]] std::string err() const { return read_text(folder.path() / "stderr"); }
  [[nodiscard]] std::filesystem::path run_folder() const { return folder.path() / "run"; }  // for --out
  [[nodiscard]] reports::Run journal() const;
  [[nodiscard]] reports::Json events(const std::string& kind) const;
  [[nodiscard]] reports::Case find(const std::string& id) const;

  TempFolder folder;
};

}  // namespace harness::tests
