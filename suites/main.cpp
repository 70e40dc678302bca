#include "harness/program.hpp"
#include "suites/program.hpp"

int main(int argc, char** argv) { return harness::run_program(suites::make_program(), argc, argv); }
