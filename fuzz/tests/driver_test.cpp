#include "fuzz/driver.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <vector>

namespace fuzz {
namespace {

using testing::HasSubstr;

const Limits kShort{.cpu_s = 1, .wall_s = 2, .bytes = std::size_t{64} << 20};

Target target(const std::function<void(const std::string&)>& read) {
  return {"test", "a reader that misbehaves", read, {"good", "bad", "good too"}, {}};
}

std::string seen(const std::function<void()>& misbehave) {
  const Outcome outcome = fuzz(target([&](const std::string& input) {
                                 if (input == "bad") misbehave();
                               }),
                               1, 0, kShort);
  EXPECT_EQ(outcome.inputs, 3U);
  EXPECT_EQ(outcome.failures.size(), 1U);
  if (outcome.failures.empty()) return "";
  EXPECT_EQ(outcome.failures[0].input, "bad");
  return outcome.failures[0].what;
}

TEST(Driver, ReadersThatKeepTheirWordPass) {
  const Outcome outcome = fuzz(target([](const std::string&) {}), 1, 0.05, kShort);
  EXPECT_GT(outcome.inputs, 3U);
  EXPECT_TRUE(outcome.failures.empty());
}

TEST(Driver, EveryWayToMisbehaveIsSeenAndTheRestIsReadAllTheSame) {
  EXPECT_THAT(seen([] { throw std::logic_error("not documented"); }), HasSubstr("not documented"));
  EXPECT_THAT(seen([] { throw 3; }), HasSubstr("no std::exception"));
  EXPECT_THAT(seen([] { std::abort(); }), HasSubstr("signal 6"));
  EXPECT_THAT(seen([] { std::exit(0); }), HasSubstr("status 0"));
  EXPECT_THAT(seen([] { std::exit(4); }), HasSubstr("status 4"));
  EXPECT_THAT(seen([] {
                std::vector<std::vector<char>> all;
                while (true) all.emplace_back(1 << 20);
              }),
              HasSubstr("asked for more than 64 MiB"));
  EXPECT_THAT(seen([] {
                while (clock() >= 0) {
                }
              }),
              HasSubstr("more than 1 s of processor time"));
}

TEST(Driver, OneInputIsTriedAlone) {
  const Target strict = target([](const std::string& input) {
    if (input.size() > 2) throw std::out_of_range("too long");
  });
  EXPECT_EQ(try_input(strict, "ab", kShort), "");
  EXPECT_THAT(try_input(strict, "abc", kShort), HasSubstr("too long"));
}

TEST(Driver, GivesUpAfterSomeFailures) {
  const Outcome outcome = fuzz(target([](const std::string&) { throw std::logic_error("always"); }), 1, 10, kShort, 2);
  EXPECT_EQ(outcome.failures.size(), 2U);
}

}  // namespace
}  // namespace fuzz
