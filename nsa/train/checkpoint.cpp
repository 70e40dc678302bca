#include "nsa/train/checkpoint.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <tuple>

#include "nsa/train/files.hpp"
#include "nsa/train/hash.hpp"

namespace nsa::train {

namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "nsa-train/1";
constexpr const char* kChecksum = "checksum";
constexpr std::uint64_t kWord = 8;

struct Dtype {
  const char* name;
  at::ScalarType type;
};
constexpr std::array kDtypes = {Dtype{"F64", at::kDouble},    Dtype{"F32", at::kFloat}, Dtype{"F16", at::kHalf},
                                Dtype{"BF16", at::kBFloat16}, Dtype{"I64", at::kLong},  Dtype{"I32", at::kInt},
                                Dtype{"U8", at::kByte},       Dtype{"BOOL", at::kBool}};

const char* name_of(at::ScalarType type) {
  for (const auto& dtype : kDtypes)
    if (dtype.type == type) return dtype.name;
  throw std::invalid_argument(fmt::format("checkpoint: no name for dtype {}", c10::toString(type)));
}

std::optional<at::ScalarType> type_of(const std::string& name) {
  for (const auto& dtype : kDtypes)
    if (dtype.name == name) return dtype.type;
  return std::nullopt;
}

// The length and the header, padded with blanks so that the tensors begin at a multiple of 8.
std::string header_of(const TrainState& state) {
  json header = {{"__metadata__", {{"format", kFormat}, {"facts", state.facts.dump()}}}};
  std::uint64_t offset = 0;
  const auto describe = [&](const std::string& name, const char* dtype, at::IntArrayRef shape, std::uint64_t bytes) {
    header[name] = {{"dtype", dtype}, {"shape", shape.vec()}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  };
  for (const auto& [name, tensor] : state.tensors)
    describe(name, name_of(tensor.scalar_type()), tensor.sizes(), tensor.nbytes());
  describe(kChecksum, "U8", {static_cast<std::int64_t>(kWord)}, kWord);

  std::string text = header.dump();
  text.append((kWord - text.size() % kWord) % kWord, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), kWord) + text;
}

// Reads on through a file, hashing what it reads.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& file) : file_(file), stream_(file, std::ios::binary) {
    if (!stream_) throw FileError("cannot open", file, errno);
    std::error_code error;
    left_ = std::filesystem::file_size(file, error);
    if (error) throw FileError("cannot look at", file, error.value());
  }
  void read(void* data, std::uint64_t bytes) {
    if (bytes > left_) refuse(fmt::format("is cut off: {} bytes are missing", bytes - left_));
    stream_.read(static_cast<char*>(data), static_cast<std::streamsize>(bytes));
    if (static_cast<std::uint64_t>(stream_.gcount()) != bytes) refuse("cannot be read to its end");
    hash_.add(data, bytes);
    left_ -= bytes;
  }
  [[nodiscard]] std::uint64_t left() const { return left_; }
  [[nodiscard]] std::uint64_t hash() const { return hash_.value(); }
  [[noreturn]] void refuse(const std::string& reason) const {
    throw CheckpointInvalid(fmt::format("checkpoint {} {}", file_.string(), reason));
  }

 private:
  std::filesystem::path file_;
  std::ifstream stream_;
  std::uint64_t left_ = 0;
  Hash64 hash_;
};

json read_header(Reader& reader) {
  std::uint64_t length = 0;
  reader.read(&length, kWord);
  if (length > reader.left()) reader.refuse("is cut off within its header, or is no checkpoint");
  std::string text(length, '\0');
  reader.read(text.data(), length);
  json header = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object() || !header.contains("__metadata__")) reader.refuse("has no header");
  if (const auto format = header["__metadata__"].value("format", ""); format != kFormat)
    reader.refuse(fmt::format("has the format '{}'; '{}' is read here", format, kFormat));
  return header;
}

struct Entry {
  std::string name;
  at::ScalarType type;
  std::vector<std::int64_t> shape;
  std::uint64_t begin, end;
};

// The tensors in the order in which they lie in the file.
std::vector<Entry> entries_of(const json& header, const Reader& reader) {
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    const auto type = type_of(value.at("dtype").get<std::string>());
    if (!type) reader.refuse(fmt::format("has a tensor {} of unknown dtype {}", name, value.at("dtype").dump()));
    const auto offsets = value.at("data_offsets").get<std::array<std::uint64_t, 2>>();
    entries.push_back({name, *type, value.at("shape").get<std::vector<std::int64_t>>(), offsets[0], offsets[1]});
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  return entries;
}

// Of a tensor with this type and shape. torch refuses sizes below 0 and strides beyond 64 bits in its own way.
std::uint64_t bytes_of(const Entry& entry, const Reader& reader) {
  std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(entry.type)), extent = bytes;
  for (const auto size : entry.shape) {
    if (size < 0 || __builtin_mul_overflow(extent, std::max<std::int64_t>(size, 1), &extent))
      reader.refuse(
          fmt::format("has a tensor {} of an impossible shape [{}]", entry.name, fmt::join(entry.shape, ",")));
    bytes *= size;
  }
  return static_cast<std::uint64_t>(bytes);
}

at::Tensor read_tensor(Reader& reader, const Entry& entry, std::uint64_t begin) {
  const std::uint64_t bytes = bytes_of(entry, reader);
  if (entry.begin != begin || entry.end - entry.begin != bytes)
    reader.refuse(fmt::format("does not hold {} where its header says", entry.name));
  if (bytes > reader.left()) reader.refuse(fmt::format("is cut off within {}", entry.name));
  at::Tensor tensor = at::empty(entry.shape, entry.type);
  reader.read(tensor.mutable_data_ptr(), bytes);
  return tensor;
}

TrainState read_state(Reader& reader, const Pulse& pulse) {
  const json header = read_header(reader);
  TrainState state;
  std::uint64_t begin = 0;
  for (const Entry& entry : entries_of(header, reader)) {
    const std::uint64_t hash = reader.hash();  // of all before this tensor
    const at::Tensor tensor = read_tensor(reader, entry, begin);
    begin = entry.end;
    if (pulse) pulse();
    if (entry.name != kChecksum) {
      state.tensors.emplace(entry.name, tensor);
      continue;
    }
    if (tensor.nbytes() != kWord || std::memcmp(tensor.const_data_ptr(), &hash, kWord) != 0)
      reader.refuse("is damaged: its checksum does not fit its content");
    if (reader.left() != 0) reader.refuse("goes on after its end");
    state.facts = json::parse(header["__metadata__"].at("facts").get<std::string>());
    (void)state.step();  // every state has one
    return state;
  }
  reader.refuse("has no checksum");
}

}  // namespace

void write_checkpoint(const std::filesystem::path& path, const TrainState& state, const Pulse& pulse) {
  AtomicFile file(path);
  Hash64 hash;
  const auto put = [&](const void* data, std::size_t bytes) {
    file.write(data, bytes);
    hash.add(data, bytes);
    if (pulse) pulse();
  };
  const std::string header = header_of(state);
  put(header.data(), header.size());
  for (const auto& [name, tensor] : state.tensors) {
    const at::Tensor value = tensor.contiguous().cpu();
    put(value.const_data_ptr(), value.nbytes());
  }
  const std::uint64_t checksum = hash.value();
  file.write(&checksum, kWord);
  file.commit();
}

TrainState read_checkpoint(const std::filesystem::path& file, const Pulse& pulse) {
  Reader reader(file);
  try {
    return read_state(reader, pulse);
  } catch (const json::exception& error) {
    reader.refuse(fmt::format("has a header that makes no sense: {}", error.what()));
  }
}

}  // namespace nsa::train
