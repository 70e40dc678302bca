#include "nsa/flags.hpp"
#include "nsa/train/run/program.hpp"

int main(int argc, char** argv) {
  nsa::wait_without_spinning(argv);
  return nsa::train::run_program(argc, argv);
}
