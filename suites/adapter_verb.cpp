#include "suites/adapter_verb.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/streams.hpp"
#include "harness/process.hpp"
#include "reports/status.hpp"
#include "suites/locations.hpp"
#include "suites/providers.hpp"

namespace suites {

namespace {

namespace fs = std::filesystem;
using reports::ExitCode;

int fail(ExitCode code, const std::string& message) {
  base::complain(message, fmt::format("{}: ", kProgramName));
  return static_cast<int>(code);
}

// The child: the interpreter, with the user's own streams.
[[noreturn]] void become(const std::string& python, const std::string& host, const std::string& file, int verdict) {
  setenv("NSA_ADAPTER_VERDICT", std::to_string(verdict).c_str(), 1);
  const char* const arguments[] = {python.c_str(), host.c_str(), "--check", file.c_str(), nullptr};
  ::execvp(python.c_str(), const_cast<char* const*>(arguments));
  const char code = static_cast<char>(
      fail(ExitCode::infrastructure,
           fmt::format("{} cannot be started: {}; name another with --python", python, std::strerror(errno))));
  _exit(write(verdict, &code, 1) == 1 ? code : 1);
}

// The host writes its exit code to a pipe: a program that is no Python, or an adapter that leaves, has none, and an
// exit code of 0 says nothing.
int check(const std::string& python, const std::string& file) {
  std::error_code unknown;  // what cannot be looked at is no file
  if (!fs::is_regular_file(file, unknown))
    return fail(ExitCode::usage,
                fmt::format("{} is no file; `{} adapter new FILE` writes one to begin with", file, kProgramName));
  int ends[2];
  if (pipe(ends) != 0) return fail(ExitCode::infrastructure, fmt::format("no pipe: {}", std::strerror(errno)));
  const harness::Fd verdict(ends[0]);
  const pid_t child = fork();
  if (child == 0) become(python, (data_folder() / "adapters" / "host" / "host.py").string(), file, ends[1]);
  close(ends[1]);
  if (child < 0) return fail(ExitCode::infrastructure, fmt::format("no process: {}", std::strerror(errno)));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  char code = 0;
  pollfd told = {verdict.get(), POLLIN, 0};  // what the adapter has left running may hold the other end
  if (poll(&told, 1, 0) == 1 && read(verdict.get(), &code, 1) == 1) return code;
  return fail(
      ExitCode::infrastructure,
      fmt::format("{} ended ({}) without a word about {}: it is no Python, or the adapter ended it; name another "
                  "interpreter with --python",
                  python,
                  WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                      : fmt::format("exit code {}", WEXITSTATUS(status)),
                  file));
}

int make(const std::string& file) {
  std::error_code error;
  if (fs::exists(file, error)) return fail(ExitCode::usage, fmt::format("{} exists; nothing was written", file));
  fs::copy_file(data_folder() / "adapters" / "skeleton.py", file, error);
  if (error) return fail(ExitCode::infrastructure, fmt::format("{} cannot be written: {}", file, error.message()));
  base::out("{} is written; next: {} adapter check {}\n", file, kProgramName, file);
  return 0;
}

}  // namespace

std::optional<int> adapter_verb(int argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "adapter") return std::nullopt;
  CLI::App app("Adapters: one Python file each that puts an implementation of somebody else under the suites.",
               fmt::format("{} adapter", kProgramName));
  std::string file, python = "python3";
  CLI::App* checked = app.add_subcommand("check", "say what an adapter lacks or contradicts itself in");
  checked->add_option("FILE", file, "the adapter")->required();
  checked->add_option("--python", python, "interpreter that runs it (default python3)");
  CLI::App* made = app.add_subcommand("new", "write a skeleton with comments");
  made->add_option("FILE", file, "the file to write")->required();
  app.require_subcommand(1);
  app.footer(
      "\nExit codes: 0 done, nothing wrong; 2 a mistake of the command line or the adapter; 4 no Python, no torch, no "
      "disk");
  try {
    app.parse(argc - 1, argv + 1);
    return checked->parsed() ? check(python, file) : make(file);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return fail(ExitCode::usage, error.what());
  } catch (const std::exception& error) {
    return fail(ExitCode::infrastructure, error.what());
  }
}

}  // namespace suites
