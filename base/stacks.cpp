#include "base/stacks.hpp"

#include <execinfo.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <vector>

namespace base {

namespace {

constexpr int kFrames = 64;
constexpr int kPatience_ms = 500;  // with a thread that does not begin to answer
constexpr int kAnswer_ms = 1000;   // with one that does not finish
constexpr int kQueue_ms = 1000;    // of a thread that dies while another one writes
constexpr unsigned kDeathPatience_s = 5;

// -- what runs in signal handlers: nothing that allocates, and no lock but the loader's, which backtrace_symbols_fd(3)
// takes. A thread that hangs within dlopen(3) holds it; the others then wait for it, and each wait here has an end.

static_assert(std::atomic<long>::is_always_lock_free);
std::atomic<long> writer{0};  // the thread that writes stacks now; one at a time
std::atomic<long> asked{0};   // the thread whose turn it is; negative when it answers
std::atomic<int> turn_fd{-1};
std::atomic<long> dying{0};  // the thread that died first
std::atomic<int> died_of{0};
pid_t owner = 0;  // not its children, which inherit the handlers
char dump_folder[4096], dump_file[256], words_at_death[4096];

long this_thread() { return ::syscall(SYS_gettid); }

void pause_ms(long milliseconds) {
  const timespec pause{milliseconds / 1000, milliseconds % 1000 * 1'000'000};
  ::nanosleep(&pause, nullptr);
}

bool put(int fd, const char* text) {
  for (std::size_t left = std::strlen(text); left > 0;) {
    const ssize_t written = ::write(fd, text, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text += written;
    left -= static_cast<std::size_t>(written);
  }
  return true;
}

struct Digits {
  char text[24] = {};
  const char* begin;
  explicit Digits(long number) {
    char* at = text + sizeof text - 1;
    do *--at = static_cast<char>('0' + number % 10);
    while ((number /= 10) > 0);
    begin = at;
  }
};

// Bounded text in a place of its own; what does not fit is cut off.
template <std::size_t kSize>
struct Bounded {
  char text[kSize] = {};
  std::size_t length = 0;
  Bounded& operator<<(const char* more) {
    const std::size_t fits = std::min(std::strlen(more), kSize - 1 - length);
    std::memcpy(text + length, more, fits);
    length += fits;
    return *this;
  }
};

void put_own_stack(int fd) {
  void* frames[kFrames];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, kFrames), fd);
}

// The beginning of FOLDER/THREAD/NAME into `text`; "" when there is none.
void read_of(const char* folder, long thread, const char* name, char* text, std::size_t size) {
  Bounded<128> path;
  path << folder << "/" << Digits(thread).begin << "/" << name;
  ssize_t length = -1;
  if (const int file = ::open(path.text, O_RDONLY | O_CLOEXEC); file >= 0) {
    length = ::read(file, text, size - 1);
    ::close(file);
  }
  text[length > 0 ? length : 0] = '\0';
}

void read_line_of(const char* folder, long thread, const char* name, char* text, std::size_t size) {
  read_of(folder, thread, name, text, size);
  text[std::strcspn(text, "\n")] = '\0';
}

// "thread 4711 nsa-validate, state S, waits in futex_do_wait".
struct ThreadLine : Bounded<1200> {
  ThreadLine(const char* folder, long thread) {
    char word[512];
    *this << "thread " << Digits(thread).begin;
    read_line_of(folder, thread, "comm", word, sizeof word);
    *this << " " << word;
    read_line_of(folder, thread, "stat", word, sizeof word);  // "4711 (the name) S ..."
    if (char* state = std::strrchr(word, ')'); state != nullptr && std::strlen(state) > 2) {
      state[3] = '\0';
      *this << ", state" << state + 1;
    }
    read_line_of(folder, thread, "wchan", word, sizeof word);
    if (word[0] != '\0' && std::strcmp(word, "0") != 0) *this << ", waits in " << word;
    *this << "\n";
  }
};

constexpr const char* kOwnThreads = "/proc/self/task";

void on_turn(int /*signal*/) {
  const int before = errno;
  const long self = this_thread();
  if (long turn = self; asked.compare_exchange_strong(turn, -self)) {
    put_own_stack(turn_fd);
    long answering = -self;
    asked.compare_exchange_strong(answering, 0);  // unless the one that asked has gone on
  }
  errno = before;
}

// As threads of libraries do, which leave signals to the program.
bool blocks(long thread, int signal) {
  char status[4096];
  read_of(kOwnThreads, thread, "status", status, sizeof status);
  const char* mask = std::strstr(status, "\nSigBlk:\t");
  return mask != nullptr && (std::strtoull(mask + 9, nullptr, 16) >> (signal - 1) & 1) != 0;
}

void put_other(int fd, long thread) {
  put(fd, ThreadLine(kOwnThreads, thread).text);
  if (blocks(thread, SIGRTMIN + 5)) {
    put(fd, "  (does not answer: it blocks signals)\n");
    return;
  }
  turn_fd = fd;
  asked = thread;
  if (::syscall(SYS_tgkill, ::getpid(), thread, SIGRTMIN + 5) != 0) {
    asked = 0;
    put(fd, errno == ESRCH ? "  (has ended)\n" : "  (cannot be asked)\n");
    return;
  }
  for (int i = 0; i < kPatience_ms && asked == thread; ++i) pause_ms(1);
  if (long silent = thread; asked.compare_exchange_strong(silent, 0)) {
    put(fd, "  (does not answer)\n");
    return;
  }
  for (int i = 0; i < kAnswer_ms && asked == -thread; ++i) pause_ms(1);
  if (asked.exchange(0) != 0) put(fd, "  (does not finish its answer)\n");
}

struct DirectoryEntry {  // of getdents64(2)
  std::uint64_t inode;
  std::int64_t offset;
  unsigned short length;
  unsigned char type;
  char name[1];
};

// False when it could not be written to its end.
bool put_all(int fd) {
  const long self = this_thread();
  put(fd, ThreadLine(kOwnThreads, self).text);
  put_own_stack(fd);
  const int folder = ::open(kOwnThreads, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  alignas(DirectoryEntry) char entries[4096];
  for (long bytes = 0; folder >= 0 && (bytes = ::syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0;) {
    for (long at = 0; at < bytes;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(entries + at);
      at += entry->length;
      const long thread = std::atol(entry->name);  // 0: "." and ".."
      if (thread > 0 && thread != self) put_other(fd, thread);
    }
  }
  if (folder >= 0) ::close(folder);
  return put(fd, kEndOfStacks.data());
}

// False when another thread writes and does not end in time, or this one writes already.
bool begin_to_write(int patience_ms) {
  const long self = this_thread();
  for (int i = 0;; ++i) {
    long other = 0;
    if (writer.compare_exchange_strong(other, self)) return true;
    if (other == self || i >= patience_ms) return false;
    pause_ms(1);
  }
}

// Never closed: a late answer must not go to another file of the same number.
std::atomic<int> dump_fd{-1};

// As open_own(), which allocates: a link that stands there now leads to somebody else's file.
bool open_dump() {
  if (dump_fd >= 0) return true;
  const int folder = ::open(dump_folder, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return false;
  dump_fd = ::openat(folder, dump_file, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  ::close(folder);
  return dump_fd >= 0;
}

void on_request(int /*signal*/) {
  const int before = errno;
  if (::getpid() == owner && begin_to_write(0)) {
    if (open_dump()) put_all(dump_fd);
    writer = 0;
  }
  errno = before;
}

// Comes when the handler returns: a core file then shows the place of the fault.
void raise_for_good(int number) {
  ::signal(number, SIG_DFL);
  ::syscall(SYS_tgkill, ::getpid(), this_thread(), number);
}

void unblock(int number) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
}

void die_here(int number) {
  raise_for_good(number);
  unblock(number);
}

void out_of_patience(int /*signal*/) { die_here(died_of); }

void on_death(int number) {
  if (::getpid() != owner) return raise_for_good(number);
  const long self = this_thread();
  if (long first = 0; !dying.compare_exchange_strong(first, self)) {
    if (first == self) return die_here(died_of);  // its stack is not to be read
    // Another thread dies already: it shows this one too, and the process is to die as it does.
    for (unsigned i = 0; i < 2000 * kDeathPatience_s; ++i) pause_ms(1);
    return raise_for_good(number);
  }
  died_of = number;
  for (const int other : {SIGPIPE, SIGXFSZ}) ::signal(other, SIG_IGN);  // of the writing below
  ::signal(SIGALRM, out_of_patience);
  unblock(SIGALRM);
  ::alarm(kDeathPatience_s);
  if (!begin_to_write(kQueue_ms)) writer = self;
  put(STDERR_FILENO, open_dump() && put_all(dump_fd) ? words_at_death : "crashed; the stacks could not be written\n");
  ::alarm(0);
  raise_for_good(number);
}

// -- what does not

void handle(int number, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, nullptr);
}

// The handler stays: a thread that was asked may be slow to answer, and the signal's own action would end the process.
void get_ready_to_ask() {
  void* once[1];
  (void)::backtrace(once, 1);  // it allocates at its first call, which a handler must not
  handle(SIGRTMIN + 5, on_turn, SA_RESTART);
}

}  // namespace

std::string all_stacks() {
  get_ready_to_ask();
  static const int room = ::memfd_create("stacks", MFD_CLOEXEC);  // stays open: see dump_fd
  if (room < 0) return "no stacks: no memory file can be made\n";
  if (!begin_to_write(kQueue_ms)) return "no stacks: another thread writes them\n";
  std::string raw;
  if (::ftruncate(room, 0) == 0 && ::lseek(room, 0, SEEK_SET) == 0) put_all(room);
  raw.resize(static_cast<std::size_t>(::lseek(room, 0, SEEK_END)));
  const ssize_t length = ::pread(room, raw.data(), raw.size(), 0);
  writer = 0;
  raw.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return readable_stacks(raw);
}

void write_stacks_to(const std::filesystem::path& file, const std::string& last_words) {
  if (owner == ::getpid()) return;
  // Links that lead to the folder are followed now, none later.
  const std::filesystem::path path = std::filesystem::weakly_canonical(std::filesystem::absolute(file).parent_path());
  const std::string folder = path, name = file.filename();
  if (folder.size() < sizeof dump_folder && name.size() < sizeof dump_file) {
    folder.copy(dump_folder, folder.size());
    name.copy(dump_file, name.size());
  }
  last_words.copy(words_at_death, sizeof words_at_death - 1);
  owner = ::getpid();
  static char room[1 << 17];
  const stack_t other{.ss_sp = room, .ss_flags = 0, .ss_size = sizeof room};
  sigaltstack(&other, nullptr);
  get_ready_to_ask();
  handle(stacks_signal(), on_request, SA_RESTART);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) handle(number, on_death, SA_ONSTACK);
}

std::vector<pid_t> thread_ids(pid_t process) {
  std::error_code gone;
  std::vector<pid_t> ids;
  for (std::filesystem::directory_iterator task(fmt::format("/proc/{}/task", process), gone), end; !gone && task != end;
       task.increment(gone))
    ids.push_back(std::atoi(task->path().filename().c_str()));
  std::sort(ids.begin(), ids.end(),
            [=](pid_t a, pid_t b) { return std::pair(a != process, a) < std::pair(b != process, b); });
  return ids;
}

std::string threads_of(pid_t process) {
  const std::string folder = fmt::format("/proc/{}/task", process);
  std::string text;
  for (const pid_t thread : thread_ids(process)) text += ThreadLine(folder.c_str(), thread).text;
  return text;
}

}  // namespace base
