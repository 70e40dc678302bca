#include "base/environment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

namespace {

using testing::ElementsAre;

TEST(Environment, IsThatOfThisProcess) {
  ::setenv("BASE_ENVIRONMENT_TEST", "a=b", 1);
  EXPECT_EQ(base::environment().at("BASE_ENVIRONMENT_TEST"), "a=b");
  EXPECT_EQ(base::variable("BASE_ENVIRONMENT_TEST"), "a=b");
  ::setenv("BASE_ENVIRONMENT_TEST", "", 1);
  EXPECT_EQ(base::variable("BASE_ENVIRONMENT_TEST"), "");
  ::unsetenv("BASE_ENVIRONMENT_TEST");
  EXPECT_FALSE(base::environment().contains("BASE_ENVIRONMENT_TEST"));
  EXPECT_EQ(base::variable("BASE_ENVIRONMENT_TEST"), std::nullopt);
}

TEST(Environment, MistakesAreGatheredEachWithItsVariable) {
  const base::Environment environment = {{"A", "7"}, {"B", "7x"}, {"C", ""}, {"D", "9"}, {"E", "99999999999999999999"}};
  base::Variables variables(environment);
  EXPECT_EQ(variables.number("A", 0, 8, "a number"), 7);
  EXPECT_EQ(variables.number("absent", 0, 8, "a number"), std::nullopt);
  EXPECT_TRUE(variables.mistakes().empty());
  for (const char* name : {"B", "C", "D", "E"}) EXPECT_EQ(variables.number(name, 0, 8, "a number"), std::nullopt);
  EXPECT_THAT(variables.mistakes(), ElementsAre("B is '7x', allowed is an integer from 0 to 8 (a number)",
                                                "C is '', allowed is an integer from 0 to 8 (a number)",
                                                "D is '9', allowed is an integer from 0 to 8 (a number)",
                                                "E is '99999999999999999999', allowed is an integer from 0 to 8 "
                                                "(a number)"));
}

}  // namespace
