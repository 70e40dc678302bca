#include "harness/suite.hpp"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

namespace {

using harness::Case;
using harness::derive_seed;

TEST(Suite, IdHasParametersInAlphabeticalOrder) {
  Case c;
  c.name = "forward";
  EXPECT_EQ(case_id("s_sweep", c), "s_sweep/forward");
  c.params = {{"dtype", "fp32"}, {"S", "512"}};
  EXPECT_EQ(case_id("s_sweep", c), "s_sweep/forward[S=512,dtype=fp32]");
  c.params.set("S", "128");
  c.params.set("B", "2");
  EXPECT_EQ(case_id("s_sweep", c), "s_sweep/forward[B=2,S=128,dtype=fp32]");
}

TEST(Suite, IdsAreShellAndParserFriendly) {
  harness::Params params;
  EXPECT_THROW(params.set("a b", "1"), std::logic_error);
  EXPECT_THROW(params.set("a=b", "1"), std::logic_error);
  EXPECT_THROW(params.set("a", "1,2"), std::logic_error);
  EXPECT_THROW(params.set("a", "[1]"), std::logic_error);
  params.set("flags", "NSA_USE_FA2=0");
  EXPECT_EQ(params.items().size(), 1U);
}

// These values are keys of reports and commands that people keep: they must never change.
TEST(Suite, HashAndSeedsArePinned) {
  EXPECT_EQ(harness::case_hash(""), "cbf29ce4");  // FNV-1a's offset basis
  EXPECT_EQ(harness::case_hash("a"), "af63dc4c");
  EXPECT_EQ(harness::case_hash("s_sweep/forward[S=512,dtype=fp32]"), "78bd7a66");
  EXPECT_EQ(derive_seed(42, "s_sweep/forward[S=512,dtype=fp32]", "q", 0), 1512694032306721044ULL);
  EXPECT_EQ(derive_seed(42, "s_sweep/forward[S=512,dtype=fp32]", "q", 1), 7353573751442670326ULL);
}

TEST(Suite, ASlugIsTheNameOfAFile) {
  EXPECT_EQ(harness::case_slug("s_sweep/forward[S=512,dtype=fp32]"), "s_sweep-forward-S=512-dtype=fp32-78bd7a66");
  EXPECT_EQ(harness::case_slug("../a"), "..-a-" + harness::case_hash("../a"));
  EXPECT_EQ(harness::case_slug("/"), "-" + harness::case_hash("/"));
  const std::string longer(1000, 'a');
  EXPECT_LT(harness::case_slug(longer).size(), 128U);
  EXPECT_NE(harness::case_slug(longer), harness::case_slug(longer + "a"));
}

TEST(Suite, EverySeedIsItsOwn) {
  std::set<std::uint64_t> seeds;
  for (const std::uint64_t master : {0, 1, 42})
    for (const char* id : {"a/b", "a/bc", "a"})
      for (const char* purpose : {"q", "cq", "", "/b"})
        for (const int trial : {0, 1, -1}) seeds.insert(derive_seed(master, id, purpose, trial));
  EXPECT_EQ(seeds.size(), 3U * 3 * 4 * 3);
}

}  // namespace
