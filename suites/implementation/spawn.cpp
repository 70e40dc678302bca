#include "suites/implementation/spawn.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "harness/process.hpp"
#include "harness/spawn_attributes.hpp"

namespace suites::implementation {

namespace {

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

// dup2 onto the same number would leave close-on-exec set, and onto another's number would close it: all are first
// moved above those that the child will have.
harness::Fd out_of_the_way(int fd, int above) {
  harness::Fd copy(fcntl(fd, F_DUPFD_CLOEXEC, above));
  if (copy.get() < 0) fail(errno, "fcntl");
  return copy;
}

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

std::vector<std::string> merged(const std::vector<std::string>& own) {
  std::vector<std::string> all = own;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const auto is_this = [&](const std::string& other) { return name_of(other) == name_of(*entry); };
    if (std::none_of(own.begin(), own.end(), is_this)) all.emplace_back(*entry);
  }
  return all;
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  list.reserve(words.size() + 1);
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

}  // namespace

pid_t spawn(const Program& program) {
  const int first_closed = kFirstPassed + static_cast<int>(program.passed.size());
  harness::SpawnAttributes with;
  std::vector<harness::Fd> sources;
  const auto give = [&](int fd, int number) {
    if (posix_spawn_file_actions_adddup2(&with.actions, fd, number) != 0) fail(ENOMEM, "posix_spawn_file_actions");
  };
  posix_spawn_file_actions_addopen(&with.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  sources.push_back(out_of_the_way(program.output, first_closed));
  give(sources.back().get(), STDOUT_FILENO);
  give(sources.back().get(), STDERR_FILENO);
  for (int i = 0; i < static_cast<int>(program.passed.size()); ++i) {
    sources.push_back(out_of_the_way(program.passed[static_cast<std::size_t>(i)], first_closed));
    give(sources.back().get(), kFirstPassed + i);
  }
  posix_spawn_file_actions_addclosefrom_np(&with.actions, first_closed);

  const std::vector<std::string> environment = merged(program.environment);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, program.argv.at(0).c_str(), &with.actions, &with.attributes,
                                 pointers(program.argv).data(), pointers(environment).data());
  if (error != 0) fail(error, program.argv[0]);
  return pid;
}

}  // namespace suites::implementation
