#include "suites/probes/stages.hpp"

#include <ATen/ATen.h>
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

TEST(RowMap, FindsTheDocumentOfARow) {
  const nsa::Geometry g{.l = 8, .d = 4, .l_sel = 16, .n_sel = 4, .w = 32};
  const RowMap plain{g, 20, {}};
  EXPECT_EQ(plain.place(13).document, 0);
  EXPECT_EQ(plain.place(13).row, 13);
  const RowMap packed{g, 20, at::tensor(std::vector<int>{0, 0, 9, 10, 21}, at::kInt)};  // one token more than rows
  EXPECT_EQ(packed.place(0).document, 1);
  EXPECT_EQ(packed.place(9).document, 2);
  EXPECT_EQ(packed.place(19).document, 3);
  EXPECT_EQ(packed.place(19).row, 9);
  EXPECT_EQ(packed.allowed(parse_stage("layers.0.attention.win.o"), 20, 12), 3);
  EXPECT_EQ(packed.allowed(parse_stage("layers.0.attention.cmp.o"), 20, 12), 0);
  EXPECT_EQ(packed.allowed(parse_stage("layers.0.attention.cmp.k"), 3, 1), -1);  // its rows are blocks
  EXPECT_EQ(packed.allowed(parse_stage("layers.0.mlp"), 20, 12), -1);
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
