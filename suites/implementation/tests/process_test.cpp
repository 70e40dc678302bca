#include "suites/implementation/process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "suites/implementation/arena.hpp"
#include "suites/implementation/tests/support.hpp"

namespace suites::implementation::tests {
namespace process_test {

constexpr Process::Seconds kLong{60}, kShort{0.3};

class ProcessTest : public PythonTest {
 protected:
  [[nodiscard]] Process::Command command(const std::string& body) const {
    return {kPython, program(body), adapter, arena.fd()};
  }
  // What the first exchange with a program throws; the process is gone then, and no zombie is left of it.
  ImplementationError first_error(const std::string& body) {
    Process process(command(body));
    const ImplementationError error = error_of([&] { (void)process.exchange("{}", kLong); });
    EXPECT_FALSE(process.running());
    EXPECT_EQ(waitpid(process.pid(), nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
    return error;
  }
  Arena arena;
};

TEST_F(ProcessTest, LinesGoThereAndBack) {
  Process process(command("while True: say(json.dumps(request()) + '\\n')"));
  EXPECT_EQ(process.exchange(R"({"a": "\u00e9"})", kLong), R"({"a": "\u00e9"})");
  EXPECT_EQ(process.exchange(R"({"b": 2})", kLong), R"({"b": 2})");
  EXPECT_TRUE(process.running());
}

TEST_F(ProcessTest, ItHasWhatItIsMeantToHaveAndNothingElse) {
  const harness::Fd leaked(open("/dev/null", O_RDONLY));  // without close-on-exec
  Process process(command(R"py(
request()
seen = os.listdir("/proc/self/fd")
open_ones = sorted(int(name) for name in seen if os.path.exists("/proc/self/fd/" + name))
say(json.dumps([open_ones, [R, W, M], sys.argv[1], os.getpgid(0) == os.getpid(), sys.stdin.read(),
                sys.flags.dev_mode, sys.stdout.write_through]) + "\n")
)py"));
  EXPECT_EQ(process.exchange("{}", kLong),
            "[[0, 1, 2, 3, 4, 5], [3, 4, 5], \"" + adapter.string() + "\", true, \"\", false, true]");
}

TEST_F(ProcessTest, ASignalIsNamed) {
  const auto error = first_error("request()\nprint('about to die')\nos.kill(os.getpid(), signal.SIGSEGV)");
  EXPECT_EQ(error.kind, "crashed");
  EXPECT_EQ(error.message, "killed by SIGSEGV (Segmentation fault)");
  EXPECT_THAT(error.output, testing::StartsWith("about to die\nFatal Python error: Segmentation fault\n"));
}

TEST_F(ProcessTest, AnExitCodeIsTold) {
  EXPECT_EQ(first_error("request()\nsys.exit(3)").message, "ended with exit code 3");
  EXPECT_EQ(first_error("request()").message, "ended with exit code 0");
}

TEST_F(ProcessTest, LastAnswersAreHeard) {
  Process process(command("say('done\\n')\nos._exit(0)"));
  while (process.running()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(process.exchange("{}", kLong), "done");
  EXPECT_EQ(error_of([&] { (void)process.exchange("{}", kLong); }).message, "ended with exit code 0");
}

TEST_F(ProcessTest, AnAnswerThatBreaksOffIsShown) {
  const auto error = first_error("request()\nsay('{\"id\": 1, \"ok')\nos._exit(3)");
  EXPECT_EQ(error.kind, "crashed");
  EXPECT_EQ(error.message, "ended with exit code 3, in the middle of its answer: {\"id\": 1, \"ok");
}

TEST_F(ProcessTest, SilenceEndsIt) {
  Process process(command("request()\nprint('waiting')\nsay('ready\\n')\ntime.sleep(1000)"));
  EXPECT_EQ(process.exchange("{}", kLong), "ready");
  const auto error = error_of([&] { (void)process.exchange("{}", kShort); });
  EXPECT_EQ(error.kind, "silent");
  EXPECT_EQ(error.message, "no answer within 0.3 s");
  EXPECT_EQ(error.output, "waiting\n");
  EXPECT_FALSE(process.running());
}

TEST_F(ProcessTest, OneLineInAnswerToOne) {
  const auto error = first_error("request()\nsay('1\\n2\\n')\ntime.sleep(1000)");
  EXPECT_EQ(error.kind, "protocol");
  EXPECT_EQ(error.message, "more than one line in answer to one: 2\n");
}

TEST_F(ProcessTest, ALineWithoutAnEndIsRefused) {
  const auto error = first_error("request()\nwhile True: say('x' * 65536)");
  EXPECT_EQ(error.kind, "protocol");
  EXPECT_THAT(error.message, testing::StartsWith("an answer of more than 16777216 bytes: xxx"));
}

TEST_F(ProcessTest, AClosedPipeIsNoDeath) {
  const auto error = first_error("request()\nos.close(W)\ntime.sleep(1000)");
  EXPECT_EQ(error.kind, "protocol");
  EXPECT_EQ(error.message, "it has closed its pipe of answers");
}

TEST_F(ProcessTest, AFloodOfOutputBlocksNobody) {
  Process process(command(R"py(
request()
block = b"x" * 63 + b"\n"
for _ in range(100):
    sys.stdout.buffer.write(block * (1 << 14))
os.write(2, b"the end\n")
say("done\n")
)py"));
  EXPECT_EQ(process.exchange("{}", kLong), "done");
  process.end();
  const std::string words = process.last_words();
  EXPECT_EQ(words.size(), Tail::kKept);
  EXPECT_THAT(words, testing::EndsWith("xxx\nthe end\n"));
}

TEST_F(ProcessTest, ALargeRequestIsReadPieceByPiece) {
  Process process(command("say(str(len(requests.readline())) + '\\n')"));
  EXPECT_EQ(process.exchange(std::string(1 << 20, ' '), kLong), std::to_string((1 << 20) + 1));
}

TEST_F(ProcessTest, ALargeRequestThatNobodyReadsWaitsNoLonger) {
  Process process(command("time.sleep(1000)"));
  const auto error = error_of([&] { (void)process.exchange(std::string(1 << 20, ' '), kShort); });
  EXPECT_EQ(error.kind, "silent");
  EXPECT_EQ(error.message, "it has not read the request within 0.3 s");
}

// SIGPIPE would end this test program.
TEST_F(ProcessTest, ALargeRequestToADyingProcessIsACrash) {
  Process process(command("os.close(R)\ntime.sleep(0.1)\nos.kill(os.getpid(), signal.SIGKILL)"));
  const auto error = error_of([&] { (void)process.exchange(std::string(1 << 20, ' '), kLong); });
  EXPECT_EQ(error.kind, "crashed");
  EXPECT_THAT(error.message, testing::StartsWith("killed by SIGKILL (Killed) before it had read the request; "));
  EXPECT_THAT(error.message, testing::ContainsRegex("it held .* GiB at most"));
}

TEST_F(ProcessTest, ADeadProcessIsNotAskedAgain) {
  Process process(command(""));
  process.end();
  process.end();
  EXPECT_FALSE(process.running());
  const auto error = error_of([&] { (void)process.exchange("{}", kLong); });
  EXPECT_EQ(error.kind, "crashed");
  EXPECT_EQ(error.message, "killed by SIGKILL (Killed) before it was asked");
}

constexpr const char* kWithChild = R"py(
request()
child = os.fork()
if child == 0:
    time.sleep(1000)
say(str(child) + "\n")
request()
os._exit(3)
)py";

TEST_F(ProcessTest, TheWholeGroupGoes) {
  int child = 0;
  {
    Process process(command(kWithChild));
    child = std::stoi(process.exchange("{}", kLong));
    EXPECT_EQ(kill(child, 0), 0);
  }
  EXPECT_TRUE(is_gone(child));
}

TEST_F(ProcessTest, AChildThatHoldsThePipesDelaysNothing) {
  Process process(command(kWithChild));
  const int child = std::stoi(process.exchange("{}", kLong));
  const auto error = error_of([&] { (void)process.exchange("{}", kLong); });
  EXPECT_EQ(error.message, "ended with exit code 3");
  EXPECT_TRUE(is_gone(child));
}

// It goes on writing after the group was killed, and nobody waits for it.
TEST_F(ProcessTest, AChildThatLeftTheGroupDelaysNothing) {
  Process process(command(R"py(
request()
read_end, write_end = os.pipe()
child = os.fork()
if child == 0:
    os.setsid()
    os.write(1, b"y" * 65536)
    os.write(write_end, b"!")
    while True:
        os.write(1, b"y" * 65536)
os.read(read_end, 1)
say(str(child) + "\n")
time.sleep(1000)
)py"));
  const int child = std::stoi(process.exchange("{}", kLong));
  process.end();
  EXPECT_THAT(process.last_words(), testing::EndsWith("yyyy"));
  kill(child, SIGKILL);
}

std::size_t entries(const char* own_folder) {
  const std::filesystem::directory_iterator all(own_folder);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST_F(ProcessTest, NothingIsLeftOfIt) {
  const std::size_t files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  for (const char* body : {"request()\nsys.exit(3)", "os.close(W)", "say('1\\n' * 2)\ntime.sleep(1000)"})
    (void)first_error(body);
  (void)error_of([&] { Process({"/no/such/python", program(""), adapter, arena.fd()}); });
  EXPECT_EQ(entries("/proc/self/fd"), files);
  EXPECT_EQ(entries("/proc/self/task"), threads);
}

TEST_F(ProcessTest, WhatCannotBeStartedIsSaid) {
  const auto error = error_of([&] { Process({"/no/such/python", program(""), adapter, arena.fd()}); });
  EXPECT_EQ(error.kind, "start");
  EXPECT_EQ(error.message, "Python cannot be started: /no/such/python: No such file or directory");
}

TEST_F(ProcessTest, AProgramThatIsNotThereIsPythonsToSay) {
  Process process({kPython, folder / "no.py", adapter, arena.fd()});
  const auto error = error_of([&] { (void)process.exchange("{}", kLong); });
  EXPECT_EQ(error.message, "ended with exit code 2");
  EXPECT_THAT(error.output, testing::HasSubstr("can't open file"));
}

// The host asks to die with its parent, which to the kernel is the thread that started it.
TEST_F(ProcessTest, ItOutlivesTheThreadThatStartedIt) {
  std::unique_ptr<Process> process;
  std::thread([&] {
    process = std::make_unique<Process>(command(R"py(
import ctypes
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
while True: say(json.dumps(request()) + "\n")
)py"));
    EXPECT_EQ(process->exchange("{}", kLong), "{}");
  }).join();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(process->exchange("{}", kLong), "{}");
}

TEST_F(ProcessTest, ManyThreadsEachHaveTheirOwn) {
  const Process::Command echo = command("while True: say(json.dumps(request()) + '\\n')");
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i)
    threads.emplace_back([&, i] {
      Process process(echo);
      for (int j = 0; j < 50; ++j) {
        const std::string line = "{\"a\": " + std::to_string(100 * i + j) + "}";
        if (process.exchange(line, kLong) == line) ++right;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 6 * 50);
}

}  // namespace process_test
}  // namespace suites::implementation::tests
