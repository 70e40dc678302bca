// Where threads are: of this process, and of children that die in every way or are asked while they live.
#include "base/stacks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>
#include <thread>

using namespace std::chrono_literals;

namespace example {
namespace {

// In no dynamic symbol table.
[[gnu::noinline]] void sleep_in_a_second_thread(const std::atomic<bool>& over) {
  while (!over) std::this_thread::sleep_for(20ms);
}

// Not told by a sanitizer, which would end the process in its own way.
[[gnu::noinline, gnu::no_sanitize("undefined", "address")]] int fall() {
  const volatile int* volatile nothing = nullptr;
  return *nothing;
}

[[gnu::noinline]] int without_end(int depth) {
  volatile char room[4096];
  room[depth % 4096] = 1;
  if (depth < 0) return 0;
  return without_end(depth + 1) + room[0];
}

}  // namespace
}  // namespace example

namespace base {
namespace {

namespace fs = std::filesystem;

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Sleeper {
 public:
  Sleeper() {
    while (!ready_) std::this_thread::yield();
  }
  ~Sleeper() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> ready_{false}, over_{false};
  std::thread thread_{[this] {
    pthread_setname_np(pthread_self(), "sleeper");
    ready_ = true;
    example::sleep_in_a_second_thread(over_);
  }};
};

struct Child {
  pid_t pid;
  fs::path file;
  ~Child() {
    std::error_code ignored;
    fs::remove(file, ignored);
  }

  [[nodiscard]] std::string stacks() const {
    std::ifstream stream(file);
    return readable_stacks({std::istreambuf_iterator<char>(stream), {}});
  }
  // Waits for its end.
  [[nodiscard]] int status() const {
    int status = 0;
    waitpid(pid, &status, 0);
    return status;
  }
};

template <typename Act>
Child child_that(Act act, const std::string& last_words = "", const fs::path& folder = testing::TempDir()) {
  const fs::path file = folder / ("stacks_test_" + std::to_string(getpid()));  // tests run at the same time
  const pid_t pid = fork();
  if (pid != 0) return {pid, file};
  write_stacks_to(file, last_words);
  act();
  _exit(0);
}

// What is written to standard error meanwhile.
template <typename Act>
std::string errors_of(Act act) {
  testing::internal::CaptureStderr();
  act();
  return testing::internal::GetCapturedStderr();
}

TEST(Stacks, ShowEveryThreadAndWhereItIs) {
  const Sleeper sleeper;
  const std::string stacks = all_stacks();
  EXPECT_THAT(stacks, AllOf(HasSubstr(" sleeper, state "), HasSubstr("nanosleep"), HasSubstr("ShowEveryThread"),
                            HasSubstr("sleep_in_a_second_thread"), HasSubstr(kEndOfStacks)));
  EXPECT_THAT(stacks, Not(HasSubstr("does not answer")));
}

TEST(Stacks, ADyingProcessLeavesThemAndDiesOfTheSameSignal) {
  struct Death {
    const char* name;
    std::function<void()> die;
    int signal;
    const char* function;
  };
  const Death deaths[] = {
      {"null pointer", [] { (void)example::fall(); }, SIGSEGV, "fall"},
      {"stack overflow", [] { (void)example::without_end(0); }, SIGSEGV, " more of it"},
      {"abort", [] { std::abort(); }, SIGABRT, "abort"},
      {"uncaught exception", []() noexcept { std::thread([] { throw std::runtime_error("in a thread"); }).join(); },
       SIGABRT, "abort"},
      {"from outside", [] { kill(getpid(), SIGBUS); }, SIGBUS, "kill"},
  };
  for (const Death& death : deaths) {
    SCOPED_TRACE(death.name);
    const Child child = child_that([&death] {
      const Sleeper sleeper;
      death.die();
    });
    const int status = child.status();
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), death.signal);
    EXPECT_THAT(child.stacks(),
                AllOf(HasSubstr(death.function), HasSubstr("sleep_in_a_second_thread"), HasSubstr(kEndOfStacks)));
  }
}

// A parent waits for the child of its vfork(2) as for a device: no signal reaches it. This one is on its way when the
// stacks have been told, and must not end the process later.
TEST(Stacks, AThreadThatIsSlowToAnswerComesToNoHarm) {
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<bool> begun{false};
    std::thread slow([&] {
      begun = true;
      if (vfork() == 0) {
        const timespec long_enough{1, 500'000'000};
        nanosleep(&long_enough, nullptr);
        _exit(0);
      }
    });
    while (!begun) std::this_thread::yield();
    std::this_thread::sleep_for(100ms);
    const bool said = all_stacks().find("  (does not answer)\n") != std::string::npos;
    slow.join();
    _exit(said ? 7 : 8);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << "died of signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(Stacks, AThreadThatBlocksSignalsCostsNoTime) {
  std::atomic<bool> blocked{false}, told{false};
  std::thread deaf([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    blocked = true;
    while (!told) std::this_thread::sleep_for(1ms);
  });
  while (!blocked) std::this_thread::yield();
  EXPECT_THAT(all_stacks(), HasSubstr("  (does not answer: it blocks signals)\n"));
  told = true;
  deaf.join();
}

TEST(Stacks, ThreadsThatDieTogetherDoNotCutEachOtherShort) {
  for (int i = 0; i < 10; ++i) {
    const Child child = child_that([] {
      std::atomic<int> ready{0};
      const auto fall_with_others = [&ready] {
        for (++ready; ready < 3;) std::this_thread::yield();
        (void)example::fall();
      };
      std::thread first(fall_with_others), second(fall_with_others), third(fall_with_others);
      first.join();
    });
    EXPECT_EQ(WTERMSIG(child.status()), SIGSEGV);
    EXPECT_THAT(child.stacks(), AllOf(HasSubstr("::fall()"), testing::EndsWith(kEndOfStacks)));
  }
}

TEST(Stacks, TheFirstPlaceInAProcessStays) {
  const fs::path other = fs::path(testing::TempDir()) / ("stacks_test_other_" + std::to_string(getpid()));
  const Child child = child_that([&] {
    write_stacks_to(other, "words of another\n");
    (void)example::fall();
  });
  EXPECT_EQ(WTERMSIG(child.status()), SIGSEGV);
  EXPECT_THAT(child.stacks(), testing::EndsWith(kEndOfStacks));
  EXPECT_FALSE(fs::exists(other));
}

TEST(Stacks, AChildThatWasForkedDoesNotWriteIntoTheFileOfItsParent) {
  const Child child = child_that([] {
    const pid_t grandchild = fork();
    if (grandchild == 0) (void)example::fall();
    int status = 0;
    waitpid(grandchild, &status, 0);
    _exit(WIFSIGNALED(status) ? WTERMSIG(status) : 0);
  });
  EXPECT_EQ(WEXITSTATUS(child.status()), SIGSEGV);
  EXPECT_FALSE(fs::exists(child.file));
}

// Neither a file that cannot be written, nor a reader that is gone, nor a limit hides of what the process died.
TEST(Stacks, WhatCannotBeWrittenIsSaidAndTheSignalStays) {
  const auto die = [] { (void)example::fall(); };
  std::string said = errors_of([&] { EXPECT_EQ(WTERMSIG(child_that(die, "last words\n").status()), SIGSEGV); });
  EXPECT_EQ(said, "last words\n");
  said = errors_of([&] { EXPECT_EQ(WTERMSIG(child_that(die, "last words\n", "/none").status()), SIGSEGV); });
  EXPECT_THAT(said, HasSubstr("could not be written"));
  said = errors_of([&] {
    const Child child = child_that([&] {
      const rlimit limit{100, 100};
      setrlimit(RLIMIT_FSIZE, &limit);
      die();
    });
    EXPECT_EQ(WTERMSIG(child.status()), SIGSEGV);
  });
  EXPECT_THAT(said, HasSubstr("could not be written"));
  const Child child = child_that(
      [&] {
        int ends[2];
        (void)!pipe(ends);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        die();
      },
      "last words\n");
  EXPECT_EQ(WTERMSIG(child.status()), SIGSEGV);
  EXPECT_THAT(child.stacks(), testing::EndsWith(kEndOfStacks));
}

TEST(Stacks, ALivingProcessIsAskedAndGoesOn) {
  int ready[2], over[2];
  ASSERT_TRUE(pipe(ready) == 0 && pipe(over) == 0);
  char byte = 0;
  const Child child = child_that([&] {
    const Sleeper sleeper;
    (void)!write(ready[1], &byte, 1);
    while (read(over[0], &byte, 1) != 1) {
    }
    _exit(7);
  });
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(child.pid, stacks_signal());
  for (int i = 0; i < 2000 && child.stacks().find(kEndOfStacks) == std::string::npos; ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_THAT(threads_of(child.pid), AllOf(HasSubstr(" sleeper, state "), HasSubstr("base_test")));
  EXPECT_EQ(thread_ids(child.pid).size(), 2U);
  EXPECT_EQ(thread_ids(child.pid).front(), child.pid);
  (void)!write(over[1], &byte, 1);
  const int status = child.status();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_THAT(child.stacks(), AllOf(HasSubstr("read"), HasSubstr("sleep_in_a_second_thread")));
  EXPECT_TRUE(thread_ids(child.pid).empty());
}

TEST(Stacks, TheFirstFunctionThatIsNotTheSystemsIsNamed) {
  EXPECT_EQ(top_function("thread 1 x, state R\n"
                         "  base::(anonymous namespace)::on_death(int)+0x1a (prog)\n"
                         "  ?+0x3c050 (libc.so.6)\n"
                         "  abort+0xdf (libc.so.6)\n"
                         "  ?+0x1136 (prog)\n"
                         "  std::_Function_handler<...>::_M_invoke(std::_Any_data const&)+0x14 (prog)\n"
                         "  nsa::attend(std::function<int (int)>)+0x20 (prog)\n"
                         "  main+0x20 (prog)\n"),
            "nsa::attend(std::function<int (int)>)");
  EXPECT_EQ(top_function(""), "");
  EXPECT_EQ(top_function("thread 1 x\n  ?+0x1 (prog)\n"), "");
  EXPECT_EQ(top_function("thread 1 x\n  ?+0x1 (prog)\nthread 2 x\n  f()+0x1 (prog)\n"), "") << "of another thread";
  const Child child = child_that([] { (void)example::fall(); });
  EXPECT_EQ(WTERMSIG(child.status()), SIGSEGV);
  const std::string stacks = child.stacks();
  EXPECT_EQ(top_function(stacks), "example::(anonymous namespace)::fall()");
  const auto offset = stacks.find("::fall()+0x") + 11;
  EXPECT_LT(stacks.find(' ', offset) - offset, 3U) << "bytes from the function's beginning:\n" << stacks;
}

TEST(Stacks, WhatIsNoFrameStaysAsItIs) {
  for (const char* line : {"", "(", ")", "a(b", "(+0x", "a+0x1)[0x", "thread 1 (+0x)", "end of stacks", "x(+0x)[0x]"})
    EXPECT_EQ(readable_stacks(std::string(line) + "\n").empty(), false) << line;
  EXPECT_EQ(readable_stacks("./none(+0x1136)[0x55]\n"), "  ?+0x1136 (none)\n");
  EXPECT_EQ(readable_stacks("./none(_Z3fooi+0x2)[0x55]\n"), "  foo(int)+0x2 (none)\n");
  EXPECT_EQ(readable_stacks("[0x55]\n./none()[0x56]\n"), "  ? [0x55]\n  ? ./none()[0x56]\n");
  EXPECT_EQ(readable_stacks(""), "");
}

TEST(Stacks, ThreadsAtOnePlaceAreShownOnce) {
  const std::string wait = "p(_Z4waitv+0x2)[0x55]\n", work = "p(_Z4workv+0x2)[0x56]\n",
                    silent = "  (does not answer)\n";
  EXPECT_EQ(readable_stacks("thread 1 x, state R\n" + work + "thread 2 x, state S\n" + wait + "thread 3 y, state S\n" +
                            wait + "thread 4 y, state D\n" + wait + "thread 5 x, state S\n" + wait +
                            "thread 6 x, state S\n" + silent + std::string(kEndOfStacks)),
            "thread 1 x, state R\n  work()+0x2 (p)\n"
            "thread 2 x, state S\n  wait()+0x2 (p)\n  and 2 more threads there\n"
            "thread 4 y, state D\n  wait()+0x2 (p)\n"
            "thread 6 x, state S\n  (does not answer)\nend of stacks\n");
}

TEST(Stacks, LongTemplateArgumentsAndTheHandlerItselfAreLeftOut) {
  using Long = std::map<std::string, std::vector<std::pair<std::string, std::function<int(int)>>>>;
  const std::string name = typeid(void (*)(Long, std::less<>)).name();
  EXPECT_EQ(readable_stacks("./none(_Z1f" + name.substr(3, name.size() - 4) + "+0x2)[0x55]\n"),
            "  f(std::map<...>, std::less<void>)+0x2 (none)\n");
  EXPECT_EQ(readable_stacks("thread 1 x\n"
                            "x(_ZN4base12_GLOBAL__N_17put_allEv+0x1)[0x1]\n"
                            "x(_ZN4base12_GLOBAL__N_18on_deathEi+0x1)[0x2]\n"
                            "libc.so(+0x3c050)[0x3]\n"
                            "x(_ZN3nsa4fallEv+0x1)[0x3]\n"),
            "thread 1 x\n  nsa::fall()+0x1 (x)\n");
}

}  // namespace
}  // namespace base
