#include "harness/tests/support/fake_run.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "reports/journal.hpp"

namespace harness::tests {

namespace fs = std::filesystem;

TempFolder::TempFolder() {
  std::string name = (fs::temp_directory_path() / "harness-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path TempFolder::write(const std::string& name, const std::string& content) const {
  const fs::path file = path_ / name;
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << content;
  return file;
}

std::string read_text(const fs::path& file) {
  std::ostringstream text;  // empty, and no exception, where it is of a process that ends just now
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

std::string code_of(const reports::Case& c) { return c.findings.empty() ? "none" : c.findings.at(0).code; }

pid_t FakeRun::start(const std::vector<std::string>& words) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const auto redirect = [this](const std::string& to, int fd) {
    int ends[2] = {-1, -1};
    if (to == "broken") {
      (void)!pipe2(ends, O_CLOEXEC);
      close(ends[0]);
    } else if (to != "closed") {
      ends[1] = open((folder.path() / to).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    }
    if (to == "beyond the limit") {
      const rlimit most{8 << 20, 8 << 20};
      setrlimit(RLIMIT_FSIZE, &most);
      lseek(ends[1], 16 << 20, SEEK_SET);
    }
    dup2(ends[1], fd);
  };
  redirect(out_to, STDOUT_FILENO);
  redirect(err_to, STDERR_FILENO);
  if (out_to == "closed") close(STDOUT_FILENO);
  if (err_to == "closed") close(STDERR_FILENO);
  if (chdir(folder.path().c_str()) != 0) _exit(126);
  if (!group.empty() && !(std::ofstream(group / "cgroup.procs") << getpid() << std::flush)) _exit(126);
  std::vector<char*> argv{const_cast<char*>(HARNESS_FAKE_PROGRAM)};
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(HARNESS_FAKE_PROGRAM, argv.data());
  _exit(127);
}

int FakeRun::wait(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int FakeRun::operator()(const std::vector<std::string>& words) { return wait(start(words)); }

reports::Run FakeRun::journal() const { return reports::read_journal(run_folder() / reports::kJournalFile); }

reports::Json FakeRun::events(const std::string& kind) const {
  reports::Json found = reports::Json::array();
  std::ifstream stream(run_folder() / reports::kJournalFile);
  for (std::string line; std::getline(stream, line);) {
    const reports::Json event = reports::Json::parse(line, nullptr, false);
    if (!event.is_discarded() && event.at("event") == kind) found.push_back(event);
  }
  return found;
}

reports::Case FakeRun::find(const std::string& id) const {
  for (const reports::Suite& suite : journal().suites)
    for (const reports::Case& c : suite.cases)
      if (c.id == id) return c;
  throw std::runtime_error("no case " + id);
}

}  // namespace harness::tests
