// What the tests of the data pipeline share: small files, streams read to their end, batches compared bit by bit.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "nsa/train/stream.hpp"

namespace nsa::fixtures {

// A file of its own for each test and name.
inline std::filesystem::path write_file(const std::string& name, const std::string& content) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / (std::string(test->test_suite_name()) + "." + test->name());
  std::filesystem::create_directories(folder);
  std::ofstream(folder / name, std::ios::binary | std::ios::trunc) << content;
  return folder / name;
}

inline void append(const std::filesystem::path& file, const std::string& more) {
  std::ofstream(file, std::ios::binary | std::ios::app) << more;
}

inline bool same(const train::Batch& a, const train::Batch& b) {
  if (a.tokens.defined() != b.tokens.defined() || a.cu_seqlens.has_value() != b.cu_seqlens.has_value()) return false;
  if (a.tokens.defined() && !at::equal(a.tokens, b.tokens)) return false;
  return !a.cu_seqlens || at::equal(*a.cu_seqlens, *b.cu_seqlens);
}

// To the end of the data, or `most` batches.
inline std::vector<train::Batch> drain(train::BatchStream& stream, std::size_t most = 100000) {
  std::vector<train::Batch> batches;
  while (batches.size() < most) {
    auto batch = stream.next();
    if (!batch.tokens.defined()) break;
    batches.push_back(std::move(batch));
  }
  return batches;
}

inline std::vector<std::string> rows_of(const std::vector<train::Batch>& batches) {
  std::vector<std::string> rows;
  for (const auto& batch : batches)
    for (std::int64_t b = 0; b < batch.tokens.size(0); ++b) {
      rows.emplace_back();
      for (std::int64_t t = 0; t < batch.tokens.size(1); ++t)
        rows.back().push_back(static_cast<char>(batch.tokens[b][t].item<std::int64_t>()));
    }
  return rows;
}

// The text that sequential rows hold: each begins with the last token of the one before it.
inline std::string joined(const std::vector<std::string>& rows) {
  std::string text = rows.empty() ? "" : rows.front().substr(0, 1);
  for (const auto& row : rows) {
    EXPECT_EQ(row.front(), text.back());
    text += row.substr(1);
  }
  return text;
}

inline std::vector<std::int32_t> offsets(const train::Batch& batch) {
  const auto& cu = *batch.cu_seqlens;
  return {cu.const_data_ptr<std::int32_t>(), cu.const_data_ptr<std::int32_t>() + cu.numel()};
}

// Reads to the end once; then, for every batch, a new stream that takes up the position which was saved before it must
// give the very same batches from there on.
template <typename Open>
void expect_resumable(const Open& open, std::size_t most = 100000) {
  std::vector<std::string> positions;  // as they would stand in a file
  std::vector<train::Batch> whole;
  auto stream = open();
  while (whole.size() < most) {
    positions.push_back(stream->position().dump());
    whole.push_back(stream->next());
    if (!whole.back().tokens.defined()) break;
  }
  for (std::size_t i = 0; i < positions.size(); ++i) {
    auto resumed = open();
    (void)resumed->next();  // wherever it stands
    resumed->seek(nlohmann::json::parse(positions[i]));
    EXPECT_EQ(resumed->position().dump(), positions[i]);
    for (std::size_t j = i; j < whole.size(); ++j) ASSERT_TRUE(same(resumed->next(), whole[j])) << i << " to " << j;
  }
}

template <typename Error, typename Body>
std::string thrown(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

}  // namespace nsa::fixtures
