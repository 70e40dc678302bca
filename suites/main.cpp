#include "harness/program.hpp"
#include "suites/init_stats/processes.hpp"
#include "suites/program.hpp"

int main(int argc, char** argv) {
  if (const auto code = suites::init_checks::parameters_verb(argc, argv)) return *code;
  return harness::run_program(suites::make_program(), argc, argv);
}
