#include "nsa/train/run/tests/program_runner.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace nsa::train::testing {

namespace {

constexpr const char* kConfiguration = R"(
model: {name: small, dim: 32, n_layers: 1, n_heads: 4, n_kv_groups: 2, d_k: 8, d_v: 8}
nsa: {l: 8, d: 4, l_sel: 16, n_sel: 3, w: 16}
train:
  precision: fp32
  steps: 12
  seq_len: 32
  batch_size: 2
  accumulate_grad_batches: 2
  warmup_steps: 3
  lr: 3.0e-3
  data: fixtures/text/corpus.txt
  validation_share: 0.1
  eval_every: 6
  eval_batches: 2
  save_every: 4
  log_every: 1
)";

void become(const RunOptions& options, const fs::path& out, const fs::path& err) {
  const char* program = options.plant.empty() ? NSA_TRAIN_BINARY : NSA_TRAIN_FAULTY_BINARY;
  std::vector<std::string> words = {program};
  if (!options.plant.empty()) words.push_back(options.plant);
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
  ::setenv("OMP_NUM_THREADS", "1", 1);
  const auto redirect = [](const std::string& to, const fs::path& usual, int fd) {
    if (to == "closed") return;
    ::dup2(::open((to.empty() ? usual.string() : to).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), fd);
  };
  redirect(options.out_to, out, STDOUT_FILENO);
  redirect(options.err_to, err, STDERR_FILENO);
  if (options.out_to == "closed") ::close(STDOUT_FILENO);
  if (options.err_to == "closed") ::close(STDERR_FILENO);
  for (const auto& [what, bytes] :
       {std::pair{RLIMIT_FSIZE, options.file_size_limit}, {RLIMIT_AS, options.address_space_limit}})
    if (const rlimit limit{static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)}; bytes > 0)
      ::setrlimit(what, &limit);
  ::execv(program, arguments.data());
  ::_exit(127);
}

}  // namespace

std::string Outcome::last_line() const {
  std::istringstream stream(out);
  std::string line, last;
  while (std::getline(stream, line)) last = line;
  return last;
}

Child::Child(const RunOptions& options, const fs::path& scratch)
    : out_(scratch.string() + ".stdout"), err_(scratch.string() + ".stderr") {
  pid_ = ::fork();
  if (pid_ == 0) become(options, out_, err_);
}

Child::~Child() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Child::send(int signal) const {
  if (pid_ > 0) ::kill(pid_, signal);
}

void Child::stop() const {
  send(SIGSTOP);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT);
}

Outcome Child::wait() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), content(out_), content(err_)};
}

bool Child::says(const std::string& text) {
  for (int i = 0; i < 6000; ++i) {
    if (content(err_).find(text) != std::string::npos) return true;
    siginfo_t ended{};
    if (::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == pid_)
      return content(err_).find(text) != std::string::npos;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

Place::Place() { std::ofstream(file("small.yaml")) << kConfiguration; }

RunOptions Place::options(const std::vector<std::string>& more, RunOptions options) const {
  options.arguments = {"--config", file("small.yaml").string(), "--out", run().string(), "--device", "cpu"};
  options.arguments.insert(options.arguments.end(), more.begin(), more.end());
  return options;
}

Outcome Place::train(const std::vector<std::string>& more, RunOptions options_) const {
  return Child(options(more, std::move(options_)), file("child")).wait();
}

std::string content(const fs::path& file) {
  std::ostringstream text;  // empty, and no exception, where it is of a process that ends just now
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<std::string> lines(const fs::path& file) {
  std::ifstream stream(file);
  std::vector<std::string> all;
  for (std::string line; std::getline(stream, line);) all.push_back(line);
  return all;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  if (fs::exists(folder))
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<nlohmann::json> records(const fs::path& run, const std::string& event) {
  std::vector<nlohmann::json> found;
  for (const auto& line : lines(run / "heartbeat.jsonl"))
    if (auto record = nlohmann::json::parse(line); record.at("event") == event) found.push_back(std::move(record));
  return found;
}

std::vector<std::string> figures(const fs::path& run) {
  std::vector<std::string> rows;
  for (const auto& line : lines(run / "metrics.csv")) {
    std::size_t end = 0;
    for (int i = 0; i < 4; ++i) end = line.find(',', end) + 1;
    rows.push_back(line.substr(0, end));
  }
  return rows;
}

nlohmann::json halt_of(const Place& place) { return nlohmann::json::parse(content(place.run() / ".HALT")); }

}  // namespace nsa::train::testing
