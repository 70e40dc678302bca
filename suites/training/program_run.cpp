#include "suites/training/program_run.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "base/streams.hpp"
#include "nsa/train/run/program.hpp"

namespace suites::training_cases {

namespace {

// Standard output goes to a file in memory for as long as this lives.
class HeardOutput {
 public:
  HeardOutput() : heard_(::fdopen(::memfd_create("output", MFD_CLOEXEC), "w+")), own_(::dup(STDOUT_FILENO)) {
    std::fflush(stdout);
    if (heard_ == nullptr || own_ < 0 || ::dup2(::fileno(heard_), STDOUT_FILENO) < 0)
      throw std::runtime_error(fmt::format("standard output cannot be listened to: {}", std::strerror(errno)));
  }
  ~HeardOutput() {
    give_back();
    std::fclose(heard_);
  }
  HeardOutput(const HeardOutput&) = delete;
  HeardOutput& operator=(const HeardOutput&) = delete;

  std::string text() {
    give_back();
    std::rewind(heard_);
    std::string text;
    for (int c = std::fgetc(heard_); c != EOF; c = std::fgetc(heard_)) text += static_cast<char>(c);
    return text;
  }

 private:
  void give_back() {
    if (own_ < 0) return;
    std::fflush(stdout);
    ::dup2(own_, STDOUT_FILENO);
    ::close(own_);
    own_ = -1;
  }

  std::FILE* heard_;
  int own_;
};

}  // namespace

ProgramEnd run_nsa_train(std::vector<std::string> arguments, const nsa::train::Seams& seams) {
  arguments.insert(arguments.begin(), "nsa-train");
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  HeardOutput output;
  ProgramEnd end;
  nsa::train::Seams heard = seams;
  heard.failed = [&end](const std::string& why) { end.error = why; };
  end.exit_code = nsa::train::run_program(static_cast<int>(argv.size()), argv.data(), heard);
  end.output = output.text();
  base::out("{}", end.output);
  return end;
}

}  // namespace suites::training_cases
