// Small data files whose rows tell where they come from, for cases that hold what a run reads against its data.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace suites::training_cases {

// Words with a number in each, so that no row of 24 tokens comes twice, and with letters of two to four bytes.
[[nodiscard]] std::string made_prose(std::size_t bytes, int first = 0);
// A .jsonl with documents of awkward lengths: nothing, one token, rows of S = 48 and S + 1 exactly, two rows and more,
// and so many of one token that a whole row predicts nothing.
[[nodiscard]] std::string made_documents();
// The same, and after every third line one that is no document: no JSON, no object, or without its text.
[[nodiscard]] std::string made_documents_and_bad_lines();
// A .jsonl with lines that are longer than any buffer that a reader fills at once; a byte a letter.
[[nodiscard]] std::string made_long_documents();
// Paragraphs of awkward lengths and with lines in them; the second row of S = 48 begins between two ends of lines.
[[nodiscard]] std::string made_paragraphs();
// With the folders above it. Throws std::runtime_error.
void write_text(const std::filesystem::path& file, const std::string& text);

}  // namespace suites::training_cases
