#include "suites/training/made_text.hpp"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace suites::training_cases {

namespace {

// Whole letters only, as JSON wants them.
std::string prefix(std::string text, std::size_t bytes) {
  while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U) ++bytes;
  return text.substr(0, bytes);
}

}  // namespace

std::string made_prose(std::size_t bytes, int first) {
  constexpr const char* kWords[] = {"straße", "in", "北京", "naïve", "of", "𝄞", "the"};
  std::string text;
  for (int i = first; text.size() < bytes; ++i) text += fmt::format("{} {}. ", kWords[i % 7], i);
  return text;
}

std::string made_documents() {
  constexpr std::size_t kLengths[] = {37, 1, 120, 2, 49, 48, 0, 1, 1, 5, 61, 33, 20, 3, 47, 12};
  constexpr int kSingles = 150;
  std::string lines;
  int number = 0;
  const auto add = [&](const std::string& text) { lines += nlohmann::json({{"text", text}}).dump() + "\n"; };
  for (const std::size_t length : kLengths) add(prefix(made_prose(length + 4, 100 * ++number), length));
  for (int i = 0; i < kSingles; ++i) add(std::string(1, static_cast<char>('a' + i % 26)));
  for (const std::size_t length : {44, 1, 30}) add(prefix(made_prose(length + 4, 100 * ++number), length));
  return lines;
}

std::string made_documents_and_bad_lines() {
  constexpr const char* kBad[] = {"no JSON", R"(["an array"])", R"({"title": "no text"})", R"({"text": 7})", ""};
  std::string lines;
  std::size_t number = 0, bad = 0;
  for (const char c : made_documents()) {
    lines += c;
    if (c == '\n' && ++number % 3 == 0) lines += fmt::format("{}\n", kBad[bad++ % std::size(kBad)]);
  }
  return lines;
}

std::string made_long_documents() {
  std::string lines;
  for (int i = 0; i < 6; ++i) {
    std::string text = made_prose(150'000, 20'000 * i);
    std::erase_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0x80U) != 0; });
    lines += nlohmann::json({{"text", text}}).dump() + "\n";
  }
  return lines;
}

std::string made_paragraphs() {
  constexpr std::size_t kLengths[] = {47, 20, 110, 1, 1, 48, 60, 5, 200, 33, 2, 75, 90, 40, 64, 150};
  constexpr const char* kBetween[] = {"\n\n", "\n \n", "\n\n\n", "\n", " \n\t\n"};
  std::string text;
  for (std::size_t i = 0; i < std::size(kLengths); ++i) {
    std::string words;
    for (int word = 0; words.size() < kLengths[i]; ++word)
      words += fmt::format("{}:{}{}", i, word, word % 4 == 3 ? '\n' : ' ');
    words.resize(kLengths[i]);
    words.back() = 'x';
    text += words + kBetween[i % std::size(kBetween)];
  }
  return text;
}

void write_text(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  if (!stream.flush()) throw std::runtime_error("cannot write " + file.string());
}

}  // namespace suites::training_cases
