#include <fmt/format.h>

#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <vector>

#include "nsa/train/checkpoint.hpp"
#include "nsa/train/files.hpp"

namespace nsa::train {

namespace fs = std::filesystem;

namespace {

std::string name_of(std::int64_t step) { return fmt::format("step_{:08}{}", step, CheckpointStore::kSuffix); }

}  // namespace

CheckpointStore::CheckpointStore(fs::path folder, std::int64_t keep) : folder_(std::move(folder)), keep_(keep) {
  if (keep < 1) throw std::invalid_argument(fmt::format("checkpoints: keep {}: must be at least 1", keep));
}

std::optional<std::int64_t> CheckpointStore::step_of(std::string_view name) {
  constexpr std::string_view kBegin = "step_";
  if (!name.starts_with(kBegin)) return std::nullopt;
  std::int64_t step = 0;  // and what follows the number is looked at by name_of
  const auto [end, error] = std::from_chars(name.data() + kBegin.size(), name.data() + name.size(), step);
  return error == std::errc() && step >= 0 && name == name_of(step) ? std::optional(step) : std::nullopt;
}

void CheckpointStore::keep_all() { keep_ = std::numeric_limits<std::int64_t>::max(); }

std::vector<fs::path> CheckpointStore::files() const {
  std::map<std::int64_t, fs::path, std::greater<>> found;
  if (fs::is_directory(folder_))
    for (const auto& entry : fs::directory_iterator(folder_))
      if (const auto step = step_of(entry.path().filename().native()); step && entry.is_regular_file())
        found.emplace(*step, entry.path());
  std::vector<fs::path> newest_first;
  newest_first.reserve(found.size());
  for (auto& [step, file] : found) newest_first.push_back(std::move(file));
  return newest_first;
}

fs::path CheckpointStore::save(const TrainState& state, const Pulse& pulse) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw FileError("cannot make", folder_, error.value());
  fs::path file = folder_ / name_of(state.step());
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
    if (entry->path().extension() == AtomicFile::kTemporary && !entry->is_directory() &&
        step_of(entry->path().stem().native()))
      fs::remove(entry->path());
    if (step_of(entry->path().filename().native()) && entry->is_directory()) folders.push_back(entry->path());
  }
  for (const fs::path& one : folders) {  // out of the way of the checkpoint that will have this name
    fs::rename(one, one.string() + ".broken", error);
    tell(fmt::format("{} is a folder and no checkpoint; {}", one.string(),
                     error ? "it cannot be set aside: " + error.message()
                           : fmt::format("set aside as {}.broken", one.filename().string())));
  }
  const auto all = files();
  for (const fs::path& file : all) {
    try {
      Loaded loaded{file, read_checkpoint(file, pulse)};
      // A copy under another name would be the newest for ever, and hide what is trained from now on.
      if (file.filename() != name_of(loaded.state.step()))
        throw CheckpointInvalid(
            fmt::format("{} is, by its content, the checkpoint of step {}", file.string(), loaded.state.step()));
      return loaded;
    } catch (const CheckpointInvalid& invalid) {
      tell(fmt::format("{}; set aside as {}.broken, {}", invalid.what(), file.filename().string(),
                       file == all.back() ? "there is none before it" : "the one before it is tried"));
      fs::rename(file, file.string() + ".broken");
    }
  }
  return std::nullopt;
}

}  // namespace nsa::train
