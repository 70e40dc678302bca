// The tests' program is also the ranks': it serves their verb with the catalogue of faults. And it is a starter that a
// test can kill: `__starter ORDER N`.
#include <gtest/gtest.h>

#include <memory>
#include <string_view>

#include "suites/distributed/rank.hpp"
#include "suites/distributed/ranks.hpp"
#include "suites/program.hpp"

int main(int argc, char** argv) {
  namespace ranks = suites::distributed_ranks;
  const auto seams = std::make_shared<suites::Seams>();
  const auto faults = suites::catalogue(seams);
  if (const auto code = ranks::rank_verb(argc, argv, suites::Subject(seams), faults)) return *code;
  if (argc == 4 && std::string_view(argv[1]) == "__starter") {
    for (const ranks::Ended& end : ranks::run_ranks(ranks::read_order(argv[2]), {.size = std::stoi(argv[3])}))
      if (!end.well()) return 1;
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
