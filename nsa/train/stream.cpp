#include "nsa/train/stream.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <stdexcept>
#include <vector>

#include "nsa/train/jsonl_shuffled.hpp"
#include "nsa/train/jsonl_stream.hpp"
#include "nsa/train/synthetic.hpp"
#include "nsa/train/text_stream.hpp"

namespace nsa::train {

namespace {

constexpr std::int64_t kLongestRow = 1 << 30;  // tokens; offsets of documents are int32

enum class Kind { text, jsonl, synthetic };

Kind kind_of(const std::string& data) {
  if (data == "synthetic") return Kind::synthetic;
  return std::filesystem::path(data).extension() == ".jsonl" ? Kind::jsonl : Kind::text;
}

// All that is wrong with the options, not just the first.
std::vector<std::string> mistakes(const StreamOptions& options, Kind kind) {
  std::vector<std::string> found;
  const auto need = [&](bool holds, const std::string& otherwise) {
    if (!holds) found.push_back(otherwise);
  };
  const double share = options.validation_share;
  need(!options.data.empty(), "data is empty; allowed: a path or \"synthetic\"");
  need(options.batch_size >= 1, fmt::format("batch_size is {}; allowed: from 1", options.batch_size));
  need(options.seq_len >= 1 && options.seq_len <= kLongestRow,
       fmt::format("seq_len is {}; allowed: 1 to {}", options.seq_len, kLongestRow));
  need(share >= 0 && share < 1, fmt::format("validation_share is {}; allowed: from 0, below 1", share));
  need(options.split == Split::train || kind == Kind::synthetic || share > 0,
       fmt::format("validation_share is {}; the validation split needs one above 0", share));
  need(!options.packed || options.batch_size == 1,
       fmt::format("batch_size is {}; packed batches have one row", options.batch_size));
  need(!options.packed || kind != Kind::synthetic, "packed is true; synthetic tokens have no documents");
  need(options.order != Order::random_crops || kind != Kind::jsonl,
       fmt::format("order is random_crops; {} is JSONL, which is read in sequence or shuffled", options.data));
  need(options.epochs >= 0, fmt::format("epochs is {}; allowed: from 0", options.epochs));
  need(options.epochs == 1 || kind != Kind::synthetic,
       fmt::format("epochs is {}; synthetic tokens never end, which leaves 1", options.epochs));
  need(options.max_line_bytes >= 1, fmt::format("max_line_bytes is {}; allowed: from 1", options.max_line_bytes));
  need(options.vocab >= 1, fmt::format("vocab is {}; allowed: from 1", options.vocab));
  return found;
}

}  // namespace

std::unique_ptr<BatchStream> open_stream(const StreamOptions& options) {
  const Kind kind = kind_of(options.data);
  if (const auto found = mistakes(options, kind); !found.empty())
    throw std::invalid_argument(fmt::format("data stream: {}", fmt::join(found, "; ")));
  switch (kind) {
    case Kind::text:
      if (options.order == Order::random_crops) return std::make_unique<TextStream>(options);
      return std::make_unique<Epochs>(std::make_unique<TextStream>(options), options.epochs);
    case Kind::jsonl:
      if (options.order == Order::shuffled)
        return std::make_unique<Epochs>(std::make_unique<ShuffledJsonl>(options), options.epochs);
      return std::make_unique<Epochs>(std::make_unique<JsonlStream>(options), options.epochs);
    case Kind::synthetic:
      return std::make_unique<SyntheticStream>(options);
  }
  throw std::logic_error("data stream: unknown kind");
}

}  // namespace nsa::train
