#include "nsa/train/jsonl_stream.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>

#include "base/random.hpp"
#include "nsa/tests/data_fixtures.hpp"

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

std::filesystem::path write_documents(const std::vector<std::string>& documents) {
  std::string lines;
  for (const auto& document : documents) lines += nlohmann::json{{"text", document}, {"id", 1}}.dump() + "\n";
  return write_file("documents.jsonl", lines);
}

StreamOptions options(const std::filesystem::path& file, std::int64_t S, std::int64_t B = 1) {
  StreamOptions options;
  options.data = file.string();
  options.batch_size = B;
  options.seq_len = S;
  return options;
}

StreamOptions packed(const std::filesystem::path& file, std::int64_t S) {
  auto made = options(file, S);
  made.packed = true;
  return made;
}

// Documents of every length near S = 10 and far from it, some of them empty.
std::vector<std::string> awkward_documents() {
  std::vector<std::string> documents;
  std::uint64_t state = 7;
  for (const int length : {0, 1, 0, 0, 9, 10, 11, 1, 1, 1, 20, 21, 22, 0, 137, 2, 10, 10, 5, 1, 0}) {
    documents.emplace_back();
    for (int i = 0; i < length; ++i) documents.back().push_back(static_cast<char>('a' + base::next_below(state, 26)));
  }
  return documents;
}

std::string concatenated(const std::vector<std::string>& documents, const std::string& end) {
  std::string text;
  for (const auto& document : documents) text += document + end;
  return text;
}

TEST(JsonlStream, NoTokenIsLostAndNoDocumentTruncated) {
  const auto documents = awkward_documents();
  const auto file = write_documents(documents);
  for (const std::int64_t S : {1, 2, 3, 9, 10, 11, 50, 1000})
    for (const std::int64_t B : {1, 2, 5})
      EXPECT_EQ(joined(rows_of(drain(*open_stream(options(file, S, B))))), concatenated(documents, "\n")) << S << B;
  // Not with S = 10, which leaves the last document, one token, in a row of its own with nothing to predict.
  for (const std::int64_t S : {9, 11, 12, 50, 1000})
    EXPECT_EQ(joined(rows_of(drain(*open_stream(packed(file, S))))), concatenated(documents, "")) << S;
}

// The oracle knows the whole data: where each document begins in it.
TEST(JsonlStream, CuSeqlensAreTheDocumentsOfTheRow) {
  const auto documents = awkward_documents();
  const auto file = write_documents(documents);
  std::vector<std::int32_t> begins;
  std::string text;
  for (const auto& document : documents) {
    if (!document.empty()) begins.push_back(static_cast<std::int32_t>(text.size()));
    text += document;
  }
  const auto total = static_cast<std::int32_t>(text.size());
  for (const std::int32_t S : {1, 2, 3, 7, 10, 64, 500}) {
    const auto batches = drain(*open_stream(packed(file, S)));
    std::size_t next = 0;
    for (std::int32_t from = 0; from + 1 < total; from += S) {
      const std::int32_t to = std::min(from + S + 1, total);
      std::vector<std::int32_t> expected{0};
      for (const auto begin : begins)
        if (begin > from && begin < to) expected.push_back(begin - from);
      expected.push_back(to - from);
      if (static_cast<std::int32_t>(expected.size()) == to - from + 1) continue;  // nothing to predict
      ASSERT_LT(next, batches.size());
      EXPECT_EQ(rows_of({batches[next]}).front(),
                text.substr(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from)));
      EXPECT_EQ(offsets(batches[next++]), expected) << S << " " << from;
    }
    EXPECT_EQ(next, batches.size());
  }
}

TEST(JsonlStream, TokensAreTheBytesOfTheTextInUtf8) {
  const auto file = write_file("documents.jsonl",
                               "{\"text\": \"caf\xc3\xa9 \\u4e2d\\n\\u0000\"}\r\n"  // CRLF ends a line as well
                               "  {\"other\": [1], \"text\": \"\\\"q\\\"\"}");      // the last needs no newline
  const auto batch = open_stream(packed(file, 100))->next();
  EXPECT_EQ(rows_of({batch}).front(), std::string("caf\xc3\xa9 \xe4\xb8\xad\n\0\"q\"", 14));
  EXPECT_THAT(offsets(batch), ElementsAre(0, 11, 14));
}

TEST(JsonlStream, TheSampleOfTheRepositoryIsWhatItsReadmeSays) {
  const auto file = std::filesystem::path(__FILE__).parent_path() / "../../fixtures/text/paragraphs.jsonl";
  const auto batches = drain(*open_stream(packed(file, 1 << 20)));
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_EQ(batches[0].tokens.numel(), 57343);
  EXPECT_EQ(offsets(batches[0]).size(), 129U);
}

TEST(JsonlStream, ABadLineIsNamedWithFileLineAndReason) {
  const std::map<std::string, std::string> bad{{"not json", "parse error"},
                                               {"", "parse error"},
                                               {"[1]", "is array, not an object"},
                                               {"{\"txt\": \"a\"}", "has no \"text\""},
                                               {"{\"text\": 3}", "\"text\" is number, not a string"},
                                               {"{\"text\": null}", "\"text\" is null, not a string"},
                                               {"{\"text\": \"\xff\"}", "ill-formed UTF-8 byte; last read: '\"\\xff'"},
                                               {"{\"text\": \"cut", "parse error"}};
  for (const auto& [line, reason] : bad) {
    const auto file = write_file("documents.jsonl", "{\"text\": \"good\"}\n" + line + "\n{\"text\": \"more\"}\n");
    const auto stream = open_stream(options(file, 100));
    const auto before = stream->position();
    for (int again = 0; again < 2; ++again) {  // not passed over by trying again
      const auto what = thrown<std::runtime_error>([&] { (void)stream->next(); });
      EXPECT_THAT(what, HasSubstr(file.string() + ":2: ")) << line;
      EXPECT_THAT(what, HasSubstr(reason)) << line;
      EXPECT_EQ(stream->position(), before);
    }
    auto skipping = options(file, 100);
    skipping.skip_bad_lines = true;
    const auto tolerant = open_stream(skipping);
    EXPECT_THAT(rows_of(drain(*tolerant)), ElementsAre("good\nmore\n")) << line;
    EXPECT_EQ(tolerant->position()["skipped_lines"], 1) << line;
  }
}

TEST(JsonlStream, AnErrorDoesNotQuoteALongLine) {
  const auto file = write_file("documents.jsonl", "{\"text\": \"" + std::string(100000, 'x'));
  const auto what = thrown<std::runtime_error>([&] { (void)open_stream(options(file, 4))->next(); });
  EXPECT_THAT(what, HasSubstr(":1: "));
  EXPECT_LT(what.size(), file.string().size() + 250);
}

TEST(JsonlStream, BatchesBeforeABadLineComeFirst) {
  const auto file = write_documents({"abcdef", "ghijkl"});
  append(file, "oops\n");
  const auto stream = open_stream(packed(file, 4));
  EXPECT_THAT(rows_of(drain(*stream, 2)), ElementsAre("abcde", "efghi"));
  const auto before = stream->position();
  EXPECT_THAT(thrown<std::runtime_error>([&] { (void)stream->next(); }), HasSubstr(":3: "));
  EXPECT_EQ(stream->position(), before);
}

TEST(JsonlStream, LongLines) {
  std::string text;
  for (int i = 0; i < 700000; ++i) text.push_back(static_cast<char>('a' + i % 23));  // more than is read at once
  const auto file = write_documents({"before", text, "after"});
  EXPECT_EQ(joined(rows_of(drain(*open_stream(options(file, 5000))))), "before\n" + text + "\nafter\n");
  auto limited = options(file, 100);
  limited.max_line_bytes = 600000;
  const auto stream = open_stream(limited);
  EXPECT_THAT(thrown<std::runtime_error>([&] { (void)drain(*stream); }),
              HasSubstr(":2: 700018 bytes long; allowed: 600000"));
  limited.skip_bad_lines = true;
  EXPECT_EQ(joined(rows_of(drain(*open_stream(limited)))), "before\nafter\n");
}

TEST(JsonlStream, RowsDoNotDependOnTheBatchSize) {
  const auto file = write_documents(awkward_documents());
  const auto one = rows_of(drain(*open_stream(options(file, 10, 1))));
  for (const std::int64_t B : {2, 3, 7, 100}) EXPECT_EQ(rows_of(drain(*open_stream(options(file, 10, B)))), one);
}

TEST(JsonlStream, GoesOnAtEveryPosition) {
  const auto file = write_documents(awkward_documents());
  append(file, "bad line\n{\"text\": \"the last\"}");
  for (const std::int64_t S : {1, 3, 10, 40}) {
    for (const std::int64_t B : {1, 3})
      expect_resumable([&] {
        auto made = options(file, S, B);
        made.skip_bad_lines = true;
        return open_stream(made);
      });
    expect_resumable([&] {
      auto made = packed(file, S);
      made.skip_bad_lines = true;
      return open_stream(made);
    });
  }
}

// Documents are their own numbers: each comes in one split, whatever the seed, and all of them come.
TEST(JsonlStream, TrainingAndValidationShareNoDocument) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += fmt::format("{{\"text\": \"<{}>\"}}\n", i);
  const auto file = write_file("documents.jsonl", lines);
  std::map<std::int64_t, int> seen;
  const auto read = [&](Split split, std::uint64_t seed) {
    auto made = options(file, 1 << 20);
    made.split = split;
    made.validation_share = 0.1;
    made.seed = seed;
    return rows_of(drain(*open_stream(made))).front();
  };
  const std::string train = read(Split::train, 1), validation = read(Split::validation, 1);
  EXPECT_EQ(read(Split::validation, 2), validation);
  std::size_t held_out = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string document = fmt::format("<{}>\n", i);
    const bool in_train = train.find(document) != std::string::npos;
    const bool in_validation = validation.find(document) != std::string::npos;
    EXPECT_NE(in_train, in_validation) << i;
    EXPECT_EQ(in_validation, is_validation(i, 0.1)) << i;
    held_out += in_validation ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(held_out), 200.0, 45.0);  // standard deviation 13
}

TEST(JsonlStream, ASplitWithoutDocumentsEndsAtOnce) {
  auto made = options(write_documents({"a document"}), 4);  // line 0 is in training
  made.split = Split::validation;
  made.validation_share = 1e-9;
  const auto stream = open_stream(made);
  EXPECT_FALSE(stream->next().tokens.defined());
  EXPECT_FALSE(stream->next().tokens.defined());
}

TEST(JsonlStream, OneTokenIsNothingToPredict) {
  EXPECT_TRUE(drain(*open_stream(packed(write_documents({"a"}), 4))).empty());
  EXPECT_TRUE(drain(*open_stream(packed(write_documents({"a", "b", "c", "d", "e", "f"}), 4))).empty());
  EXPECT_THAT(rows_of(drain(*open_stream(packed(write_documents({"a", "b", "c", "de"}), 4)))), ElementsAre("abcde"));
}

TEST(JsonlStream, RefusesThePositionOfOtherData) {
  const auto file = write_documents({"first document", "second"});
  const auto stream = open_stream(packed(file, 4));
  (void)stream->next();
  const auto before = stream->position();
  const auto refusal = [&](const std::string& key, const nlohmann::json& value) {
    auto changed = before;
    changed[key] = value;
    const auto what = thrown<std::invalid_argument>([&] { stream->seek(changed); });
    EXPECT_EQ(stream->position(), before);
    return what;
  };
  EXPECT_THAT(refusal("split", "validation"), HasSubstr("split is \"validation\", here it is \"train\""));
  EXPECT_THAT(refusal("validation_share", 0.1), HasSubstr("validation_share is 0.1"));
  EXPECT_THAT(refusal("packed", false), HasSubstr("packed is false"));
  EXPECT_THAT(refusal("byte", 3), HasSubstr("no line begins there"));
  EXPECT_THAT(refusal("byte", 1000), HasSubstr("byte is 1000; allowed: 0 to"));
  EXPECT_THAT(refusal("token", 15), HasSubstr("token 15 of the document at byte 0: there is none"));
  append(file, "{\"text\": \"third\"}\n");
  EXPECT_THAT(thrown<std::invalid_argument>([&] { open_stream(packed(file, 4))->seek(before); }),
              HasSubstr("file_bytes is"));
  EXPECT_THAT(rows_of(drain(*stream, 2)), ElementsAre("t doc", "cumen"));  // and goes on as if nothing had been
}

TEST(JsonlStream, AFileThatShrinksIsAnErrorAndNoEndOfData) {
  const auto file = write_documents({std::string(400000, 'a'), std::string(400000, 'b')});
  const auto stream = open_stream(options(file, 300000));
  (void)stream->next();
  std::filesystem::resize_file(file, 500000);
  EXPECT_THAT(thrown<std::runtime_error>([&] { (void)drain(*stream); }), HasSubstr("has 500000 bytes, it had"));
}

TEST(JsonlStream, RefusesFilesThatCannotServe) {
  EXPECT_THAT(thrown<std::runtime_error>([] { (void)open_stream(options("no/such.jsonl", 4)); }),
              HasSubstr("text no/such.jsonl: does not exist"));
  EXPECT_THAT(thrown<std::runtime_error>([] { (void)open_stream(options(write_file("e.jsonl", ""), 4)); }),
              HasSubstr("is empty"));
}

}  // namespace
}  // namespace nsa::train
