#include "suites/adapter_verb.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/streams.hpp"
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

// Becomes the interpreter, so that its output and its exit code are the user's own.
int check(const std::string& python, const std::string& file) {
  const std::string host = (data_folder() / "adapters" / "host" / "host.py").string();
  const char* const arguments[] = {python.c_str(), host.c_str(), "--check", file.c_str(), nullptr};
  ::execvp(python.c_str(), const_cast<char* const*>(arguments));
  return fail(ExitCode::infrastructure,
              fmt::format("{} cannot be started: {}; name another with --python", python, std::strerror(errno)));
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
