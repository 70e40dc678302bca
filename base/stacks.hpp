// Where the threads of a process are: asked by itself, by its supervisor, or when it dies.
//
// The text, a thread after the other, the one that asked or died first:
//   thread 4711 nsa-validate, state S, waits in futex_do_wait
//     nsa::attend(nsa::Call const&)+0x1f (nsa-validate)
//   end of stacks
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace base {

// Every thread of this process: name, state and what it waits for in the kernel, from /proc, and its call stack, which
// each thread writes down itself when it is sent a signal. A thread that blocks this signal or does not begin to
// answer within 0.5 s is shown without one. Takes SIGRTMIN+5, for good.
[[nodiscard]] std::string all_stacks();

// From here on the process writes the stacks of all its threads to the end of `file` on SIGSEGV, SIGBUS, SIGFPE, SIGILL
// and SIGABRT, and `last_words` to standard error (or that the stacks could not be written), and then dies as it would
// have; and on stacks_signal(), after which it goes on. The calling thread may overflow its stack: it gets another one
// for this. After 5 s a dying process dies without the rest. The file is made when there is something to write.
// Children that it forks die as usual. The first call in a process decides: what runs within a worker does not take its
// stacks from its supervisor. Takes SIGRTMIN+5, and SIGALRM while it dies. What is written is raw: readable_stacks()
// makes the text above of it.
void write_stacks_to(const std::filesystem::path& file, const std::string& last_words = "");
[[nodiscard]] inline int stacks_signal() { return SIGRTMIN + 6; }
inline constexpr std::string_view kEndOfStacks = "end of stacks\n";  // the last line

// The threads of another process, its main one first; none when there is no such process.
[[nodiscard]] std::vector<pid_t> thread_ids(pid_t process);
// What /proc tells of them: such a text without functions.
[[nodiscard]] std::string threads_of(pid_t process);

// Functions by their names: those of this program's own symbol table too, which the C library does not know. Threads
// that are at one place are shown once.
[[nodiscard]] std::string readable_stacks(const std::string& raw);

// The first function of the first thread in a readable text that is of neither this file nor the system's libraries nor
// std; "" when there is none.
[[nodiscard]] std::string top_function(const std::string& readable);

}  // namespace base
