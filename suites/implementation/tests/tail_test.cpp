#include "suites/implementation/tail.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace suites::implementation {
namespace {

TEST(Tail, KeepsAllOfALittle) {
  Tail tail;
  EXPECT_EQ(tail.text(), "");
  tail.add("one\n");
  tail.add("two\n");
  EXPECT_EQ(tail.text(), "one\ntwo\n");
}

TEST(Tail, KeepsTheEndOfMuch) {
  Tail tail;
  for (int i = 0; i < 100000; ++i) tail.add("line " + std::to_string(i) + "\n");
  tail.add(std::string(3 * Tail::kKept, 'x'));
  tail.add("the end");
  const std::string text = tail.text();
  EXPECT_EQ(text.size(), Tail::kKept);
  EXPECT_EQ(text, std::string(Tail::kKept - 7, 'x') + "the end");
}

TEST(Tail, IsTextAlsoWhereACharacterIsCut) {
  Tail tail;
  std::string text;
  while (text.size() <= Tail::kKept) text += "\xC3\xA9";  // two bytes each
  tail.add(text + "x");
  EXPECT_EQ(tail.text().substr(0, 5), "\xEF\xBF\xBD\xC3\xA9");
}

TEST(Tail, IsReadWhileItIsWritten) {
  Tail tail;
  std::thread writer([&] {
    for (int i = 0; i < 2000; ++i) tail.add(std::string(1000, 'y'));
  });
  for (int i = 0; i < 20; ++i) EXPECT_LE(tail.text().size(), Tail::kKept);
  writer.join();
  EXPECT_EQ(tail.text().size(), Tail::kKept);
}

}  // namespace
}  // namespace suites::implementation
