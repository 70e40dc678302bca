#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "nsa/train/checkpoint.hpp"
#include "nsa/train/files.hpp"

namespace nsa::train {

namespace fs = std::filesystem;

CheckpointStore::CheckpointStore(fs::path folder, std::int64_t keep) : folder_(std::move(folder)), keep_(keep) {
  if (keep < 1) throw std::invalid_argument(fmt::format("checkpoints: keep {}: must be at least 1", keep));
}

void CheckpointStore::keep_all() { keep_ = std::numeric_limits<std::int64_t>::max(); }

std::vector<fs::path> CheckpointStore::files() const {
  std::vector<fs::path> found;
  if (!fs::is_directory(folder_)) return found;
  for (const auto& entry : fs::directory_iterator(folder_))
    if (entry.path().extension() == kSuffix && entry.is_regular_file()) found.push_back(entry.path());
  std::sort(found.rbegin(), found.rend());  // the numbers have leading zeros
  return found;
}

fs::path CheckpointStore::save(const TrainState& state, const Pulse& pulse) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw FileError("cannot make", folder_, error.value());
  const fs::path file = folder_ / fmt::format("step_{:08}{}", state.step(), kSuffix);
  write_checkpoint(file, state, pulse);
  const auto all = files();
  for (std::size_t i = static_cast<std::size_t>(keep_); i < all.size(); ++i) {
    if (all[i] == file) continue;
    if (!fs::remove(all[i], error) && error) throw FileError("cannot remove", all[i], error.value());
  }
  return file;
}

std::optional<CheckpointStore::Loaded> CheckpointStore::newest(const std::function<void(const std::string&)>& tell,
                                                               const Pulse& pulse) {
  std::error_code error;
  std::vector<fs::path> folders;
  for (auto entry = fs::directory_iterator(folder_, error); !error && entry != fs::end(entry); entry.increment(error)) {
    if (entry->path().extension() == AtomicFile::kTemporary && !entry->is_directory()) fs::remove(entry->path());
    if (entry->path().extension() == kSuffix && entry->is_directory()) folders.push_back(entry->path());
  }
  for (const fs::path& one : folders) {  // out of the way of the checkpoint that will have this name
    fs::rename(one, one.string() + ".broken", error);
    tell(fmt::format("{} is a folder and no checkpoint; {}", one.string(),
                     error ? "it cannot be set aside: " + error.message()
                           : fmt::format("set aside as {}.broken", one.filename().string())));
  }
  for (const fs::path& file : files()) {
    try {
      return Loaded{file, read_checkpoint(file, pulse)};
    } catch (const CheckpointInvalid& invalid) {
      tell(fmt::format("{}; set aside as {}.broken, the one before it is used", invalid.what(),
                       file.filename().string()));
      fs::rename(file, file.string() + ".broken");
    }
  }
  return std::nullopt;
}

}  // namespace nsa::train
