#include "base/yaml.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace base {
namespace {

// What is said of a text that is refused, as "line:column: reason" counted from one; "" when it was read.
std::string refusal_of_yaml(const std::string& text, const YamlLimits& limits = {}) {
  try {
    (void)load_yaml(text, limits);
    return "";
  } catch (const YAML::ParserException& error) {
    return std::to_string(error.mark.line + 1) + ":" + std::to_string(error.mark.column + 1) + ": " + error.msg;
  }
}

TEST(Yaml, DocumentsAreReadAsTheyStand) {
  EXPECT_TRUE(load_yaml("").empty());
  EXPECT_TRUE(load_yaml("# nothing but a comment\n").empty());
  EXPECT_EQ(load_yaml("a: 1\nb: [1, {c: 2}]\n").at(0)["b"][1]["c"].as<int>(), 2);
  EXPECT_EQ(load_yaml("a: 1\n---\nb: 2\n").size(), 2U);
  EXPECT_EQ(load_yaml("---\n---\n...\n---\n").size(), 3U);
  const auto shared = load_yaml("one: &x {a: 1}\ntwo: *x\n").at(0);
  EXPECT_EQ(shared["two"]["a"].as<int>(), 1);
}

TEST(Yaml, FortyBytesThatYamlCppTurnsIntoDocumentsWithoutEndAreRefused) {
  EXPECT_EQ(refusal_of_yaml("  a: 1\n, b\nmodel:\n  x: 1\n"), "2:1: what stands here belongs to nothing before it");
}

TEST(Yaml, AliasesCountAsWhatTheyStandFor) {
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    laughs += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + before;
    for (int j = 1; j < 10; ++j) laughs += ", " + before;
    laughs += "]\n";
  }
  EXPECT_THAT(refusal_of_yaml(laughs), testing::HasSubstr("more than 100000 values"));
  EXPECT_THAT(refusal_of_yaml("a: &x [*x]\n"), testing::HasSubstr("an alias within its own anchor"));
}

TEST(Yaml, DepthNodesAndBytesAreBounded) {
  const YamlLimits limits{.bytes = 200, .nodes = 10, .depth = 4};
  EXPECT_EQ(refusal_of_yaml("[[[[1]]]]", limits), "");
  EXPECT_THAT(refusal_of_yaml("[[[[[1]]]]]", limits), testing::HasSubstr("1:5: nested more than 4 levels deep"));
  EXPECT_EQ(refusal_of_yaml("[1, 2, 3, 4, 5, 6, 7, 8, 9]", limits), "");
  EXPECT_THAT(refusal_of_yaml("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]", limits), testing::HasSubstr("more than 10 values"));
  EXPECT_EQ(refusal_of_yaml(std::string(200, ' '), limits), "");
  EXPECT_THAT(refusal_of_yaml(std::string(201, ' '), limits), testing::HasSubstr("longer than 200 bytes"));
  EXPECT_NE(refusal_of_yaml(std::string(100'000, '[')), "");  // and no stack overflow within the parser
  EXPECT_NE(refusal_of_yaml(std::string(100'000, '{')), "");
  std::string blocks;
  for (int depth = 0; depth < 700; ++depth) blocks += std::string(static_cast<std::size_t>(depth), ' ') + "a:\n";
  EXPECT_NE(refusal_of_yaml(blocks), "");
}

TEST(Yaml, WhatIsNoTextSaysWhere) { EXPECT_EQ(refusal_of_yaml("a: 1\nb: x\xb5\n"), "2:5: not UTF-8"); }

TEST(Yaml, WhatIsNoYamlSaysWhere) { EXPECT_THAT(refusal_of_yaml("a: 1\nb: [1\nc: 2\n"), testing::HasSubstr("3:")); }

}  // namespace
}  // namespace base
