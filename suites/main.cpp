#include <fmt/format.h>

#include <memory>
#include <string_view>
#include <vector>

#include "base/streams.hpp"
#include "harness/program.hpp"
#include "nsa/flags.hpp"
#include "suites/adapter_verb.hpp"
#include "suites/distributed/rank.hpp"
#include "suites/faults/sources/source_mutants.hpp"
#include "suites/init_stats/processes.hpp"
#include "suites/machine/flags.hpp"
#include "suites/program.hpp"
#include "suites/providers.hpp"
#include "suites/scenario/verb.hpp"
#include "suites/selftest/verb.hpp"

namespace {

// Whatever the verb: a misspelt flag is one that is not in force.
void warn_of_unknown_flags() {
  for (const nsa::UnknownFlag& flag : nsa::unknown_flags(nsa::read_environment()))
    base::tell(fmt::format("{}: warning: {}", suites::kProgramName, suites::machine::describe(flag)));
}

// Nobody takes it for the product's tester.
void tell_of_source_mutants() {
  if (const auto count = suites::count_of_source_mutants(); count > 0)
    base::tell(fmt::format(
        "{}: warning: this program was built with {} mutants of the sources (NSA_VALIDATE_SOURCE_MUTANTS), for "
        "`selftest --group sources`; what it says of the product counts for nothing",
        suites::kProgramName, count));
}

}  // namespace

int main(int argc, char** argv) {
  nsa::wait_without_spinning(argv);  // the workers inherit it
  // Workers write into pipes, and what the flags are was said before they were started.
  const bool worker = argc > 1 && std::string_view(argv[1]).starts_with("__");
  if (!worker) {
    base::guard_streams();  // before the first word
    tell_of_source_mutants();
    warn_of_unknown_flags();
  }
  if (const auto code = suites::init_checks::parameters_verb(argc, argv)) return *code;
  if (const auto code = suites::adapter_verb(argc, argv)) return *code;
  const auto seams = std::make_shared<suites::Seams>();
  const std::vector<suites::Planted> faults = suites::catalogue(seams);
  if (const auto code = suites::distributed_ranks::rank_verb(argc, argv, suites::Subject(seams), faults)) return *code;
  const harness::Program program = suites::make_program();
  if (const auto code = suites::selftest::verb(argc, argv, program, faults)) return *code;
  if (const auto code = suites::scenario::verb(argc, argv, program, faults)) return *code;
  return harness::run_program(program, argc, argv);
}
