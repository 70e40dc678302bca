// What a person sees while a run goes on, on standard error: one live line on a terminal, one line a suite in a pipe,
// findings as they come. Never part of a result.
#pragma once

#include <chrono>
#include <string>

#include "base/live_line.hpp"
#include "reports/model.hpp"

namespace harness {

class Progress {
 public:
  struct Options {
    bool quiet = false;
    bool live = false;  // standard error is a terminal and nobody asked for plain output
    bool color = false;
    std::size_t cases = 0;  // planned
  };
  struct Note {
    std::string code;
    reports::Severity severity;
    std::string where;  // case id, or "" for the run
    std::string message;
  };

  explicit Progress(const Options& options) : options_(options) {}
  void case_begin(const std::string& id);
  void phase(const std::string& name);
  void retry(const std::string& reason);
  void case_end(reports::Status status);  // also of one that never began
  void suite_end(const std::string& suite);
  void finding(const Note& note);
  void tick();  // redraws the elapsed time; cheap to call often

 private:
  void draw();

  Options options_;
  std::string case_, phase_;
  std::size_t done_ = 0;
  reports::Totals suite_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), case_begin_ = begin_;
  base::LiveLine line_;
};

// `fd` is a terminal, and NO_COLOR is not set; `color` is auto, always or never.
[[nodiscard]] bool want_color(const std::string& color, int fd);

}  // namespace harness
