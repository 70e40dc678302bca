// Runs nsa-train as a program and looks at what it leaves.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nsa/tests/scratch.hpp"

namespace nsa::train::testing {

namespace fs = std::filesystem;

struct Outcome {
  int code = -1;  // exit code, or 128 + signal
  std::string out, err;
  [[nodiscard]] std::string last_line() const;  // of stdout
};

struct RunOptions {
  std::vector<std::string> arguments = {};
  std::string plant = {};                             // "nan-gradient@3": needs the program with planted faults
  long file_size_limit = 0, address_space_limit = 0;  // bytes; 0: none
  std::map<std::string, std::string> environment = {};
  std::string out_to = {}, err_to = {};  // instead of those files: another one, or "closed"
};

// One start of the program; stdout and stderr go to files beside `scratch`.
class Child {
 public:
  Child(const RunOptions& options, const fs::path& scratch);
  ~Child();  // kills it if it still runs
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void send(int signal) const;
  void stop() const;  // by SIGSTOP: it stands still on return, or has ended
  [[nodiscard]] Outcome wait();
  // Until `text` stands on its stderr, 60 s at most; false when it ended before.
  [[nodiscard]] bool says(const std::string& text);

 private:
  pid_t pid_ = -1;
  fs::path out_, err_;
};

// A folder of this test's own with a small configuration in it: 12 steps of 2 x 32 tokens, a figure a step.
class Place {
 public:
  Place();
  [[nodiscard]] fs::path run() const { return folder_ / "run"; }
  [[nodiscard]] fs::path file(const std::string& name) const { return folder_ / name; }
  // --config ... --out run() and `more`; the same run for the same arguments.
  [[nodiscard]] Outcome train(const std::vector<std::string>& more, RunOptions options = {}) const;
  [[nodiscard]] RunOptions options(const std::vector<std::string>& more, RunOptions options = {}) const;

 private:
  fixtures::Scratch folder_;
};

[[nodiscard]] std::string content(const fs::path& file);  // "" when missing
[[nodiscard]] std::vector<std::string> lines(const fs::path& file);
[[nodiscard]] std::vector<std::string> names_in(const fs::path& folder);  // sorted
[[nodiscard]] nlohmann::json halt_of(const Place& place);                 // .HALT
// The columns of metrics.csv that do not depend on time: step, loss, lr, grad_norm.
[[nodiscard]] std::vector<std::string> figures(const fs::path& run);
// The records of heartbeat.jsonl with that event.
[[nodiscard]] std::vector<nlohmann::json> records(const fs::path& run, const std::string& event);

}  // namespace nsa::train::testing
