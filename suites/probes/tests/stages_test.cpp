#include "suites/probes/stages.hpp"

#include <gtest/gtest.h>

namespace suites::probes {
namespace {

TEST(Stages, ParsesLayerAndBranch) {
  const Stage stage = parse_stage("layers.11.attention.sel.o");
  EXPECT_EQ(stage.layer, 11);
  EXPECT_EQ(stage.branch, "sel");
  EXPECT_EQ(parse_stage("layers.3").layer, 3);
  EXPECT_EQ(parse_stage("layers.3").branch, "");
  EXPECT_EQ(parse_stage("logits").layer, -1);
  EXPECT_EQ(parse_stage("layers.x.window").layer, -1);
  EXPECT_EQ(parse_stage("layers.0.attention.window").branch, "");  // whole words only
}

TEST(Stages, CountsAllowedKeysOfARow) {
  const nsa::Geometry g{.l = 8, .d = 4, .l_sel = 16, .n_sel = 4, .w = 32};
  EXPECT_EQ(allowed_keys("cmp", g, 6), 0);
  EXPECT_EQ(allowed_keys("cmp", g, 7), 1);
  EXPECT_EQ(allowed_keys("cmp", g, 10), 1);
  EXPECT_EQ(allowed_keys("cmp", g, 11), 2);
  EXPECT_EQ(allowed_keys("win", g, 0), 1);
  EXPECT_EQ(allowed_keys("win", g, 31), 32);
  EXPECT_EQ(allowed_keys("win", g, 400), 32);
  EXPECT_EQ(allowed_keys("sel", g, 0), 1);
  EXPECT_EQ(allowed_keys("sel", g, 16), 17);
  EXPECT_EQ(allowed_keys("sel", g, 400), 3 * 16 + 1);
  EXPECT_EQ(allowed_keys("", g, 400), -1);
}

TEST(Stages, KnowsWhichDimensionIsTheRow) {
  EXPECT_EQ(stage_layout("layers.0.attention.cmp.lse", 3).row, 2);
  EXPECT_EQ(stage_layout("layers.0.attention.cmp.o", 4).row, 1);
  EXPECT_EQ(stage_layout("layers.0.attention.cmp.o", 4).head, 2);
  EXPECT_EQ(stage_layout("layers.0.mlp", 3).head, -1);
  EXPECT_EQ(stage_layout("loss", 0).row, -1);
}

}  // namespace
}  // namespace suites::probes
