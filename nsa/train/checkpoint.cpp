#include "nsa/train/checkpoint.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "nsa/train/files.hpp"
#include "nsa/train/hash.hpp"
#include "nsa/train/tensor_file.hpp"

namespace nsa::train {

namespace {

using nlohmann::json;

constexpr const char* kChecksum = "checksum";
constexpr std::uint64_t kNumberBytes = 8;

// The length and the header, padded with blanks so that the tensors begin at a multiple of 8.
std::string header_of(const TrainState& state) {
  json header = {{"__metadata__", {{"format", kCheckpointFormat}, {"facts", state.facts.dump()}}}};
  std::uint64_t offset = 0;
  const auto describe = [&](const std::string& name, const char* dtype, at::IntArrayRef shape, std::uint64_t bytes) {
    header[name] = {{"dtype", dtype}, {"shape", shape.vec()}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  };
  for (const auto& [name, tensor] : state.tensors)
    describe(name, dtype_name(tensor.scalar_type()), tensor.sizes(), tensor.nbytes());
  describe(kChecksum, "U8", {static_cast<std::int64_t>(kNumberBytes)}, kNumberBytes);

  std::string text = header.dump();
  text.append((kNumberBytes - text.size() % kNumberBytes) % kNumberBytes, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), kNumberBytes) + text;
}

TrainState read_state(const std::filesystem::path& file, const Pulse& pulse) {
  TensorFileReader reader(file);
  const auto refuse = [&](const std::string& reason) {
    throw TensorFileInvalid(fmt::format("{} {}", file.string(), reason));
  };
  if (const auto format = reader.metadata().value("format", ""); format != kCheckpointFormat)
    refuse(fmt::format("has the format '{}'; '{}' is read here", format, kCheckpointFormat));
  TrainState state;
  bool checked = false;
  for (;;) {
    const std::uint64_t hash = reader.hash();  // of all before this tensor
    auto tensor = reader.next();
    if (!tensor) break;
    if (checked) refuse("goes on after its checksum");
    if (pulse) pulse();
    if (tensor->name != kChecksum) {
      state.tensors.emplace(std::move(tensor->name), std::move(tensor->value));
      continue;
    }
    if (tensor->value.nbytes() != kNumberBytes || std::memcmp(tensor->value.const_data_ptr(), &hash, kNumberBytes) != 0)
      refuse("is damaged: its checksum does not fit its content");
    checked = true;
  }
  if (!checked) refuse("has no checksum");
  state.facts = json::parse(reader.metadata().at("facts").get<std::string>());
  (void)state.step();  // every state has one
  return state;
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
  file.write(&checksum, kNumberBytes);
  file.commit();
}

TrainState read_checkpoint(const std::filesystem::path& file, const Pulse& pulse) {
  try {
    return read_state(file, pulse);
  } catch (const TensorFileInvalid& error) {
    throw CheckpointInvalid(fmt::format("checkpoint {}", error.what()));
  } catch (const json::exception& error) {
    throw CheckpointInvalid(
        fmt::format("checkpoint {} has a header that makes no sense: {}", file.string(), error.what()));
  }
}

}  // namespace nsa::train
