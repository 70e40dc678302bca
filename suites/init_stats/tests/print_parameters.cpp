#include "suites/init_stats/processes.hpp"

int main(int argc, char** argv) { return suites::init_checks::parameters_verb(argc, argv).value_or(64); }
