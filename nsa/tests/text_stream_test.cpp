#include "nsa/train/text_stream.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nsa/tests/data_fixtures.hpp"
#include "nsa/train/text.hpp"

namespace nsa::train {
namespace {

using fixtures::append;
using fixtures::drain;
using fixtures::expect_resumable;
using fixtures::joined;
using fixtures::offsets;
using fixtures::rows_of;
using fixtures::thrown;
using fixtures::write_file;
using testing::ElementsAre;
using testing::HasSubstr;

// All values of a byte, and no two neighbours alike.
std::string bytes_of(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text.push_back(static_cast<char>((i * 37 + i / 256) % 256));
  return text;
}

StreamOptions text_options(const std::filesystem::path& file, std::int64_t S, std::int64_t B = 1) {
  StreamOptions options;
  options.data = file.string();
  options.batch_size = B;
  options.seq_len = S;
  return options;
}

StreamOptions packed_text(const std::filesystem::path& file, std::int64_t S) {
  auto made = text_options(file, S);
  made.packed = true;
  return made;
}

StreamOptions crops(const std::filesystem::path& file, std::int64_t S, std::int64_t B = 1) {
  auto made = text_options(file, S, B);
  made.order = Order::random_crops;
  return made;
}

TEST(TextStream, EveryByteIsReadInOrderWhateverTheLength) {
  constexpr std::int64_t S = 7;
  for (const std::size_t size : {2, 7, 8, 9, 14, 15, 16, 50, 700})
    for (const std::int64_t B : {1, 2, 3}) {
      const std::string text = bytes_of(size);
      const auto stream = open_stream(text_options(write_file("text", text), S, B));
      const auto batches = drain(*stream);
      EXPECT_EQ(joined(rows_of(batches)), text) << size;
      for (std::size_t i = 0; i + 1 < batches.size(); ++i) EXPECT_LE(batches[i + 1].tokens.size(0), B);
      EXPECT_FALSE(stream->next().tokens.defined());  // the end stays the end
      EXPECT_FALSE(stream->next().tokens.defined());
    }
}

// 3 whole rows, and 5 bytes more: a batch of two, one of one, and the tail by itself.
TEST(TextStream, TheLastBatchesAreSmallerAndNotPadded) {
  const auto batches = drain(*open_stream(text_options(write_file("text", bytes_of(3 * 10 + 1 + 5)), 10, 2)));
  ASSERT_EQ(batches.size(), 3U);
  EXPECT_EQ(batches[0].tokens.sizes(), (at::IntArrayRef{2, 11}));
  EXPECT_EQ(batches[1].tokens.sizes(), (at::IntArrayRef{1, 11}));
  EXPECT_EQ(batches[2].tokens.sizes(), (at::IntArrayRef{1, 6}));
  for (const auto& batch : batches) {
    EXPECT_EQ(batch.tokens.scalar_type(), at::kLong);
    EXPECT_FALSE(batch.cu_seqlens.has_value());
  }
}

TEST(TextStream, RowsDoNotDependOnTheBatchSize) {
  const auto file = write_file("text", bytes_of(500));
  EXPECT_EQ(rows_of(drain(*open_stream(text_options(file, 7, 1)))),
            rows_of(drain(*open_stream(text_options(file, 7, 4)))));
  EXPECT_EQ(rows_of(drain(*open_stream(crops(file, 7, 1)), 60)), rows_of(drain(*open_stream(crops(file, 7, 4)), 15)));
}

TEST(TextStream, CropsAreThoseOfTheTextInMemory) {
  const auto file = write_file("text", bytes_of(300));
  const auto stream = open_stream(crops(file, 20, 3));
  RandomCrops in_memory(read_bytes(file), 3, 20, StreamOptions{}.seed);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(at::equal(stream->next().tokens, in_memory.next()));
}

// The documents of a text, each as it is read.
std::vector<std::string> paragraphs(const std::string& text) {
  const auto batch = open_stream(packed_text(write_file("text", text), 1000))->next();
  std::vector<std::string> found;
  const auto ends = offsets(batch);
  for (std::size_t i = 0; i + 1 < ends.size(); ++i)
    found.push_back(text.substr(static_cast<std::size_t>(ends[i]), static_cast<std::size_t>(ends[i + 1] - ends[i])));
  return found;
}

TEST(TextStream, DocumentsAreParagraphs) {
  EXPECT_THAT(paragraphs("one\ntwo\n\nthree\n"), ElementsAre("one\ntwo\n\n", "three\n"));
  EXPECT_THAT(paragraphs("one\r\n\r\ntwo"), ElementsAre("one\r\n\r\n", "two"));
  EXPECT_THAT(paragraphs("a\n \t\n\n\n  b"),
              ElementsAre("a\n \t\n\n\n  ", "b"));  // an indent goes with the blank lines
  EXPECT_THAT(paragraphs("\n\na\n\n"), ElementsAre("\n\n", "a\n\n"));
  EXPECT_THAT(paragraphs("caf\xc3\xa9\n\n\xe4\xb8\xad"), ElementsAre("caf\xc3\xa9\n\n", "\xe4\xb8\xad"));
  EXPECT_THAT(paragraphs("no blank\nline"), ElementsAre("no blank\nline"));
}

// Documents of 1 byte to three rows, white space of up to 200 bytes between: at every row length, the boundaries of a
// row are those of the whole text that fall into it, and every byte comes.
TEST(TextStream, ARowAnywhereKnowsItsDocuments) {
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += std::string(static_cast<std::size_t>(1 + i * 7 % 60), static_cast<char>('a' + i % 26)) +
            std::string(static_cast<std::size_t>(i * 29 % 200), ' ') + (i % 3 == 0 ? "\n" : "\n \r\n");
  const std::vector<std::uint8_t> bytes(text.begin(), text.end());
  const auto all = paragraph_begins(bytes, 0);
  ASSERT_GT(all.size(), 20U);
  for (std::int32_t S = 1; S < 150; S += S < 20 ? 1 : 13) {
    const auto batches = drain(*open_stream(packed_text(write_file("text", text), S)));
    std::size_t rows = 0;
    for (std::int32_t row = 0; row * S + 1 < static_cast<std::int32_t>(text.size()); ++row) {
      const std::int32_t begin = row * S, end = std::min(begin + S + 1, static_cast<std::int32_t>(text.size()));
      std::vector<std::int32_t> expected{0};
      for (const auto at : all)
        if (at > begin && at < end) expected.push_back(at - begin);
      expected.push_back(end - begin);
      if (static_cast<std::int32_t>(expected.size()) == end - begin + 1) continue;  // nothing to predict
      ASSERT_LT(rows, batches.size());
      EXPECT_EQ(rows_of({batches[rows]}).front(),
                text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
      EXPECT_EQ(offsets(batches[rows++]), expected) << "S " << S << " row " << row;
    }
    EXPECT_EQ(rows, batches.size());
  }
}

TEST(TextStream, ARowWithoutAPredictionIsPassedOver) {
  const auto batches = drain(*open_stream(packed_text(write_file("text", "x\n\nyz"), 1)));
  EXPECT_THAT(rows_of(batches), ElementsAre("x\n", "\n\n", "yz"));  // "\ny" would predict y from another document
}

TEST(TextStream, TrainingAndValidationShareNoByte) {
  const std::string text = bytes_of(1000);
  const auto file = write_file("text", text);
  for (const double share : {0.002, 0.1, 0.3333, 0.9}) {
    auto train = text_options(file, 16, 2), validation = train;
    train.validation_share = validation.validation_share = share;
    validation.split = Split::validation;
    const auto first = joined(rows_of(drain(*open_stream(train))));
    const auto last = joined(rows_of(drain(*open_stream(validation))));
    EXPECT_EQ(first + last, text);  // each byte in one of them
    EXPECT_NEAR(static_cast<double>(last.size()), 1000 * share, 0.5);
  }
}

// Every byte of the first part is below 128 and every one of the held-out part above, so that one crop across the
// border would show.
TEST(TextStream, CropsOfTheSplitsShareNoByte) {
  const auto file = write_file("text", std::string(900, 'a') + std::string(100, '\xf0'));
  auto train = crops(file, 16, 8), validation = train;
  train.validation_share = validation.validation_share = 0.1;
  validation.split = Split::validation;
  for (const auto& row : rows_of(drain(*open_stream(train), 200))) EXPECT_EQ(row, std::string(17, 'a'));
  for (const auto& row : rows_of(drain(*open_stream(validation), 200))) EXPECT_EQ(row, std::string(17, '\xf0'));
}

TEST(TextStream, GoesOnAtEveryPosition) {
  const auto file = write_file("text", "one\n\ntwo three\n\n\nfour\n" + bytes_of(80));
  expect_resumable([&] { return open_stream(text_options(file, 9, 2)); });
  expect_resumable([&] { return open_stream(packed_text(file, 9)); });
  expect_resumable([&] { return open_stream(crops(file, 9, 2)); }, 20);
}

TEST(TextStream, RefusesThePositionOfOtherData) {
  const auto file = write_file("text", bytes_of(100));
  const auto stream = open_stream(crops(file, 9, 2));
  (void)stream->next();
  const auto before = stream->position();
  const auto refusal = [&](const std::string& key, const nlohmann::json& value) {
    auto changed = before;
    if (value.is_null())
      changed.erase(key);
    else
      changed[key] = value;
    const auto what = thrown<std::invalid_argument>([&] { stream->seek(changed); });
    EXPECT_EQ(stream->position(), before);
    return what;
  };
  EXPECT_EQ(refusal("file_bytes", 99), "data position: file_bytes is 99, here it is 100");
  EXPECT_EQ(refusal("seed", 3), "data position: seed is 3, here it is 1337");
  EXPECT_THAT(refusal("fingerprint", "0"), HasSubstr("fingerprint is \"0\""));
  EXPECT_THAT(refusal("seq_len", 8), HasSubstr("seq_len is 8, here it is 9"));
  EXPECT_THAT(refusal("end", 50), HasSubstr("end is 50"));
  EXPECT_THAT(refusal("packed", nullptr), HasSubstr("packed is missing"));
  EXPECT_THAT(refusal("generator", nullptr), HasSubstr("generator is missing"));
  EXPECT_THAT(refusal("generator", -1), HasSubstr("allowed: an integer from 0"));
  EXPECT_THAT(thrown<std::invalid_argument>([&] { stream->seek("7"); }), HasSubstr("is no object"));
  const auto sequential = open_stream(text_options(file, 9));
  auto beyond = sequential->position();
  beyond["row"] = 12;  // 11 rows: the end is position 11
  EXPECT_THAT(thrown<std::invalid_argument>([&] { sequential->seek(beyond); }),
              HasSubstr("row is 12; allowed: 0 to 11"));
  EXPECT_EQ(sequential->position()["row"], 0);
}

TEST(TextStream, AFileThatGrowsIsReadAsItWas) {
  const auto file = write_file("text", bytes_of(30));
  const auto stream = open_stream(text_options(file, 10));
  (void)stream->next();
  const auto saved = stream->position();
  append(file, "more");
  EXPECT_EQ(drain(*stream).size(), 2U);  // bytes 10 to 29
  EXPECT_THAT(thrown<std::invalid_argument>([&] { open_stream(text_options(file, 10))->seek(saved); }),
              HasSubstr("file_bytes is 30, here it is 34"));
}

TEST(TextStream, AFileThatShrinksIsAnErrorAndNoEndOfData) {
  const auto file = write_file("text", bytes_of(100));
  const auto stream = open_stream(text_options(file, 10));
  (void)stream->next();
  const auto before = stream->position();
  std::filesystem::resize_file(file, 15);
  const auto what = thrown<std::runtime_error>([&] { (void)stream->next(); });
  EXPECT_THAT(what, HasSubstr(file.string()));
  EXPECT_THAT(what, HasSubstr("has 15 bytes, it had 100"));
  EXPECT_EQ(stream->position(), before);
}

TEST(TextStream, RefusesFilesThatCannotServe) {
  const auto refusal = [](const StreamOptions& made) {
    return thrown<std::runtime_error>([&] { (void)open_stream(made); });
  };
  EXPECT_EQ(refusal(text_options("no/such/text", 5)), "text no/such/text: does not exist");
  EXPECT_THAT(refusal(text_options(testing::TempDir(), 5)), HasSubstr("is not a regular file"));
  EXPECT_THAT(refusal(text_options(write_file("empty", ""), 5)), HasSubstr("is empty"));
  EXPECT_THAT(refusal(text_options(write_file("one", "x"), 5)), HasSubstr("its training split has 1 of 1 bytes"));
  EXPECT_THAT(refusal(crops(write_file("short", "12345"), 5)), HasSubstr("a random crop with seq_len 5 needs 6"));
  auto validation = text_options(write_file("hundred", bytes_of(100)), 5);
  validation.split = Split::validation;
  validation.validation_share = 0.01;
  EXPECT_THAT(refusal(validation), HasSubstr("its validation split has 1 of 100 bytes"));
  const auto pipe = write_file("x", "").parent_path() / "pipe";
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(refusal(text_options(pipe, 5)), HasSubstr("is not a regular file"));
}

TEST(TextStream, AFileWithoutPermissionIsNamed) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const auto file = write_file("secret", "text");
  std::filesystem::permissions(file, std::filesystem::perms::none);
  EXPECT_THAT(thrown<std::runtime_error>([&] { (void)open_stream(text_options(file, 2)); }),
              HasSubstr("Permission denied"));
}

}  // namespace
}  // namespace nsa::train
