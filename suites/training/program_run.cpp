#include "suites/training/program_run.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "base/streams.hpp"
#include "nsa/train/run/program.hpp"

namespace suites::training_cases {

namespace {

// A standard stream goes to a file in memory for as long as this lives.
class Heard {
 public:
  explicit Heard(std::FILE* stream)
      : stream_(stream), heard_(::fdopen(::memfd_create("heard", MFD_CLOEXEC), "w+")), own_(::dup(::fileno(stream))) {
    std::fflush(stream_);
    if (heard_ == nullptr || own_ < 0 || ::dup2(::fileno(heard_), ::fileno(stream_)) < 0)
      throw std::runtime_error(fmt::format("a standard stream cannot be listened to: {}", std::strerror(errno)));
  }
  ~Heard() {
    give_back();
    std::fclose(heard_);
  }
  Heard(const Heard&) = delete;
  Heard& operator=(const Heard&) = delete;

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
    std::fflush(stream_);
    ::dup2(own_, ::fileno(stream_));
    ::close(own_);
    own_ = -1;
  }

  std::FILE* stream_;
  std::FILE* heard_;
  int own_;
};

std::string last_error_in(const std::string& text) {
  std::istringstream lines(text);
  std::string found;
  for (std::string line; std::getline(lines, line);)
    if (const auto at = line.find("error: "); at != std::string::npos) found = line.substr(at + 7);
  return found;
}

}  // namespace

ProgramEnd run_nsa_train(std::vector<std::string> arguments, const nsa::train::Seams& seams) {
  arguments.insert(arguments.begin(), "nsa-train");
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  Heard output(stdout), error(stderr);
  ProgramEnd end;
  end.exit_code = nsa::train::run_program(static_cast<int>(argv.size()), argv.data(), seams);
  end.output = output.text();
  const std::string said = error.text();
  end.error = last_error_in(said);
  base::out("{}", end.output);
  std::fputs(said.c_str(), stderr);
  return end;
}

}  // namespace suites::training_cases
