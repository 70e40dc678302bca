// Data that is read more than once, and shuffled.
#include "nsa/train/epochs.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "nsa/tests/data_fixtures.hpp"
#include "nsa/train/jsonl_shuffled.hpp"
#include "nsa/train/permutation.hpp"

namespace nsa::train {
namespace {

using fixtures::append;
using fixtures::drain;
using fixtures::expect_resumable;
using fixtures::rows_of;
using fixtures::thrown;
using fixtures::write_file;
using testing::HasSubstr;
using testing::UnorderedElementsAreArray;

using Rows = std::vector<std::string>;

TEST(Permutation, EveryNumberOnceInAnotherOrderForEveryKey) {
  for (const std::uint64_t count : {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097}) {
    std::set<std::uint64_t> seen;
    const Permutation order(count, count);
    for (std::uint64_t i = 0; i < count; ++i) seen.insert(order(i));
    EXPECT_EQ(seen.size(), count);
    EXPECT_LT(*seen.rbegin(), count);
  }
  int fixed = 0, alike = 0;
  const Permutation one(1000, 1), two(1000, 2);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    fixed += one(i) == i ? 1 : 0;
    alike += one(i) == two(i) ? 1 : 0;
  }
  EXPECT_LT(fixed, 10);  // one is expected
  EXPECT_LT(alike, 10);
  // Of numbers near each other nothing is left: the mean distance of neighbours is a third of the count.
  double distance = 0;
  for (std::uint64_t i = 0; i + 1 < 1000; ++i)
    distance += std::abs(static_cast<double>(one(i)) - static_cast<double>(one(i + 1)));
  EXPECT_NEAR(distance / 999, 333, 40);
  const Permutation huge(std::uint64_t{1} << 40, 7);
  EXPECT_LT(huge(12345), std::uint64_t{1} << 40);
}

// One text and one JSONL file, of whole rows and a rest.
StreamOptions data(const std::string& kind) {
  StreamOptions made;
  std::string text, lines;
  for (int i = 0; i < 40; ++i) {
    text += "paragraph " + std::to_string(i * 37 % 41) + ".\n\n";
    lines += nlohmann::json{{"text", "document " + std::to_string(i * 37 % 41)}}.dump() + "\n";
  }
  made.data = kind == "text" ? write_file("data.txt", text) : write_file("data.jsonl", lines);
  made.seq_len = 16;
  made.batch_size = 3;
  return made;
}

std::vector<StreamOptions> all_kinds() {
  std::vector<StreamOptions> all;
  for (const char* kind : {"text", "jsonl"})
    for (const Order order : {Order::sequential, Order::shuffled})
      for (const bool packed : {false, true}) {
        all.push_back(data(kind));
        all.back().order = order;
        all.back().packed = packed;
        if (packed) all.back().batch_size = 1;
      }
  return all;
}

Rows in_order(StreamOptions options) {
  options.order = Order::sequential;
  options.epochs = 1;
  return rows_of(drain(*open_stream(options)));
}

TEST(Epochs, EveryPassHasEveryRowOnce) {
  for (StreamOptions options : all_kinds()) {
    const Rows once = in_order(options);
    ASSERT_GT(once.size(), 20U);
    options.epochs = 3;
    const Rows all = rows_of(drain(*open_stream(options)));
    ASSERT_EQ(all.size(), 3 * once.size());
    std::vector<Rows> passes;
    for (std::size_t pass = 0; pass < 3; ++pass) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(pass * once.size());
      passes.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(once.size()));
      EXPECT_THAT(passes.back(), UnorderedElementsAreArray(once));
      EXPECT_EQ(passes.back().back(), once.back());  // the rest
    }
    const bool shuffled = options.order == Order::shuffled;
    EXPECT_EQ(passes[0] == once, !shuffled);
    EXPECT_EQ(passes[1] == passes[0], !shuffled);
    EXPECT_EQ(passes[2] == passes[1], !shuffled);
    options.seed += 1;
    EXPECT_EQ(rows_of(drain(*open_stream(options))) == all, !shuffled);
  }
}

TEST(Epochs, RowsDoNotDependOnTheBatchSizeNorOnThePassesToCome) {
  for (StreamOptions options : all_kinds()) {
    options.epochs = 2;
    const Rows two = rows_of(drain(*open_stream(options)));
    if (!options.packed) {
      options.batch_size = 7;
      EXPECT_EQ(rows_of(drain(*open_stream(options))), two);
    }
    options.epochs = 0;
    const auto stream = open_stream(options);
    Rows endless;
    while (endless.size() < two.size()) {
      const Rows more = rows_of({stream->next()});
      endless.insert(endless.end(), more.begin(), more.end());
    }
    EXPECT_EQ(endless, two);
    EXPECT_TRUE(stream->next().tokens.defined());
  }
}

TEST(Epochs, GoesOnAtEveryPosition) {
  for (StreamOptions options : all_kinds()) {
    options.epochs = 2;
    options.seq_len = 50;
    expect_resumable([&] { return open_stream(options); });
  }
}

// A run whose data ended goes on with more passes; one from before there were any is in its first.
TEST(Epochs, APositionKnowsItsPass) {
  StreamOptions options = data("text");
  const auto one = open_stream(options);
  (void)drain(*one);
  auto end = one->position();
  EXPECT_EQ(end["epoch"], 0);
  options.epochs = 2;
  const auto two = open_stream(options);
  two->seek(end);
  EXPECT_EQ(rows_of(drain(*two)), in_order(options));
  const auto beyond = two->position();
  EXPECT_EQ(thrown<std::invalid_argument>([&] { one->seek(beyond); }), "data position: epoch is 1; allowed: 0 to 0");
  EXPECT_EQ(one->position(), end);
  end.erase("epoch");
  one->seek(end);
  EXPECT_FALSE(one->next().tokens.defined());
}

TEST(Epochs, DataWithoutABatchEndsAtOnce) {
  StreamOptions options = data("jsonl");
  options.data = write_file("empty.jsonl", "{\"text\": \"\"}\n{\"text\": \"\"}\n");
  options.packed = true;
  options.batch_size = 1;
  for (const Order order : {Order::sequential, Order::shuffled}) {
    options.order = order;
    options.epochs = 0;
    const auto stream = open_stream(options);
    EXPECT_FALSE(stream->next().tokens.defined());
    EXPECT_FALSE(stream->next().tokens.defined());
  }
}

TEST(Epochs, WhatHasNoPassesRefusesThem) {
  StreamOptions options;
  options.data = "synthetic";
  options.epochs = 2;
  EXPECT_THAT(thrown<std::invalid_argument>([&] { (void)open_stream(options); }), HasSubstr("epochs is 2; synthetic"));
  options = data("text");
  options.epochs = -1;
  EXPECT_THAT(thrown<std::invalid_argument>([&] { (void)open_stream(options); }), HasSubstr("epochs is -1"));
}

// A file with more rows than places are kept of: every 2nd, 4th, ... is, and the rows are the same.
TEST(ShuffledJsonl, FewPlacesGiveTheSameRows) {
  const StreamOptions options = data("jsonl");
  const auto rows = [&](std::size_t places) {
    ShuffledJsonl stream(options, places);
    return rows_of(drain(stream));
  };
  const Rows all = rows(ShuffledJsonl::kPlaces);
  for (const std::size_t places : {1, 2, 3, 8}) EXPECT_EQ(rows(places), all) << places;
}

TEST(ShuffledJsonl, ABadLineIsToldOnOpening) {
  StreamOptions options = data("jsonl");
  append(options.data, "no json\n");
  options.order = Order::shuffled;
  EXPECT_THAT(thrown<std::runtime_error>([&] { (void)open_stream(options); }), HasSubstr("data.jsonl:41: "));
  options.skip_bad_lines = true;
  EXPECT_EQ(open_stream(options)->position()["skipped_lines"], 1);
}

}  // namespace
}  // namespace nsa::train
