#include "harness/source_hash.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "base/fnv1a.hpp"

namespace harness {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, 6> kExtensions{".cpp", ".hpp", ".cu", ".cuh", ".h", ".cmake"};
constexpr std::string_view kListFile = "CMakeLists.txt";

class Fnv1a {
 public:
  void add(std::string_view bytes) { state_ = base::fnv1a(base::fnv1a(state_, bytes), std::string_view("\0", 1)); }
  [[nodiscard]] std::string hex() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(state_));
    return text;
  }

 private:
  std::uint64_t state_ = base::kFnvOffset;
};

bool counts(const fs::path& file) {
  return file.filename() == kListFile ||
         std::find(kExtensions.begin(), kExtensions.end(), file.extension().string()) != kExtensions.end();
}

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (!stream.is_open() || stream.bad()) {
    throw std::runtime_error("cannot read the source file " + file.string());
  }
  return content;
}

void add_sources(const fs::path& folder, std::vector<fs::path>& files) {
  for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::end(entry); ++entry) {
    if (entry->is_directory() && entry->path().filename() == "tests") {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file() && counts(entry->path())) {
      files.push_back(entry->path());
    }
  }
}

}  // namespace

std::vector<fs::path> hashed_sources(const fs::path& source_dir) {
  std::vector<fs::path> files;
  if (!fs::is_regular_file(source_dir / kListFile)) {
    return files;
  }
  files.push_back(source_dir / kListFile);
  for (const fs::directory_entry& entry : fs::directory_iterator(source_dir)) {
    if (fs::is_regular_file(entry.path() / kListFile)) {
      add_sources(entry.path(), files);
    }
  }
  for (fs::path& file : files) {
    file = file.lexically_relative(source_dir);
  }
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.generic_string() < b.generic_string(); });
  return files;
}

std::string source_hash(const fs::path& source_dir) {
  const std::vector<fs::path> files = hashed_sources(source_dir);
  if (files.empty()) {
    return "";
  }
  Fnv1a hash;
  for (const fs::path& file : files) {
    hash.add(file.generic_string());
    hash.add(read(source_dir / file));
  }
  return hash.hex();
}

}  // namespace harness
