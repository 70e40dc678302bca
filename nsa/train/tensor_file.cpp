#include "nsa/train/tensor_file.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <tuple>

#include "nsa/train/files.hpp"

namespace nsa::train {

namespace {

using nlohmann::json;

constexpr const char* kMetadata = "__metadata__";
constexpr std::uint64_t kLengthBytes = 8;

struct Dtype {
  const char* name;
  at::ScalarType type;
};
constexpr std::array kDtypes = {Dtype{"F64", at::kDouble},    Dtype{"F32", at::kFloat}, Dtype{"F16", at::kHalf},
                                Dtype{"BF16", at::kBFloat16}, Dtype{"I64", at::kLong},  Dtype{"I32", at::kInt},
                                Dtype{"U8", at::kByte},       Dtype{"BOOL", at::kBool}};

std::optional<at::ScalarType> type_of(const std::string& name) {
  for (const auto& dtype : kDtypes)
    if (dtype.name == name) return dtype.type;
  return std::nullopt;
}

}  // namespace

const char* dtype_name(at::ScalarType type) {
  for (const auto& dtype : kDtypes)
    if (dtype.type == type) return dtype.name;
  throw std::invalid_argument(fmt::format("tensor file: no name for dtype {}", c10::toString(type)));
}

TensorFileReader::TensorFileReader(const std::filesystem::path& file) : file_(file), stream_(file, std::ios::binary) {
  if (!stream_) throw FileError("cannot open", file, errno);
  std::error_code error;
  left_ = std::filesystem::file_size(file, error);
  if (error) throw FileError("cannot look at", file, error.value());
  try {
    read_header();
  } catch (const json::exception& exception) {
    refuse(fmt::format("has a header that makes no sense: {}", exception.what()));
  }
}

std::optional<TensorFileReader::Named> TensorFileReader::next() {
  if (next_ == entries_.size()) {
    if (left_ != 0) refuse("goes on after its end");
    return std::nullopt;
  }
  const Entry& entry = entries_[next_];
  const std::uint64_t begin = next_ == 0 ? 0 : entries_[next_ - 1].end, bytes = bytes_of(entry);
  if (entry.begin != begin || entry.end - entry.begin != bytes)
    refuse(fmt::format("does not hold {} where its header says", entry.name));
  if (bytes > left_) refuse(fmt::format("is cut off within {}", entry.name));
  Named named{entry.name, at::empty(entry.shape, entry.type)};
  read(named.value.mutable_data_ptr(), bytes);
  ++next_;
  return named;
}

void TensorFileReader::read(void* data, std::uint64_t bytes) {
  if (bytes > left_) refuse(fmt::format("is cut off: {} bytes are missing", bytes - left_));
  stream_.read(static_cast<char*>(data), static_cast<std::streamsize>(bytes));
  if (static_cast<std::uint64_t>(stream_.gcount()) != bytes) refuse("cannot be read to its end");
  hash_.add(data, bytes);
  left_ -= bytes;
}

void TensorFileReader::read_header() {
  std::uint64_t length = 0;
  read(&length, kLengthBytes);
  if (length > left_) refuse("is cut off within its header, or is no file of tensors");
  std::string text(length, '\0');
  read(text.data(), length);
  const json header = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) refuse("has no header");
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata) {
      if (!value.is_object()) refuse("has metadata that are no names with values");
      metadata_ = value;
      continue;
    }
    const auto type = type_of(value.at("dtype").get<std::string>());
    if (!type) refuse(fmt::format("has a tensor {} of unknown dtype {}", name, value.at("dtype").dump()));
    const auto offsets = value.at("data_offsets").get<std::array<std::uint64_t, 2>>();
    entries_.push_back({name, *type, value.at("shape").get<std::vector<std::int64_t>>(), offsets[0], offsets[1]});
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
}

// Of a tensor with this type and shape. torch refuses sizes below 0 and strides beyond 64 bits in its own way.
std::uint64_t TensorFileReader::bytes_of(const Entry& entry) const {
  std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(entry.type)), extent = bytes;
  for (const auto size : entry.shape) {
    if (size < 0 || __builtin_mul_overflow(extent, std::max<std::int64_t>(size, 1), &extent))
      refuse(fmt::format("has a tensor {} of an impossible shape [{}]", entry.name, fmt::join(entry.shape, ",")));
    bytes *= size;
  }
  return static_cast<std::uint64_t>(bytes);
}

void TensorFileReader::refuse(const std::string& reason) const {
  throw TensorFileInvalid(fmt::format("{} {}", file_.string(), reason));
}

}  // namespace nsa::train
