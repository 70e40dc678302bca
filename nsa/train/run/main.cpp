#include "nsa/train/run/program.hpp"

int main(int argc, char** argv) { return nsa::train::run_program(argc, argv); }
