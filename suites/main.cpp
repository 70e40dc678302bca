#include <fmt/format.h>

#include <string_view>

#include "harness/program.hpp"
#include "nsa/flags.hpp"
#include "suites/init_stats/processes.hpp"
#include "suites/program.hpp"
#include "suites/providers.hpp"

namespace {

// Whatever the verb: a misspelt flag is one that is not in force. Not in workers, which would say it again.
void warn_of_unknown_flags(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]).starts_with("__")) return;
  for (const nsa::UnknownFlag& flag : nsa::unknown_flags(nsa::read_environment()))
    fmt::print(stderr, "{}: warning: {} is set {}{}\n", suites::kProgramName, flag.name,
               flag.remark.empty() ? "and means nothing" : "(" + flag.remark + ")",
               flag.nearest.empty() ? "" : fmt::format("; did you mean {}?", flag.nearest));
}

}  // namespace

int main(int argc, char** argv) {
  nsa::wait_without_spinning(argv);  // the workers inherit it
  warn_of_unknown_flags(argc, argv);
  if (const auto code = suites::init_checks::parameters_verb(argc, argv)) return *code;
  return harness::run_program(suites::make_program(), argc, argv);
}
