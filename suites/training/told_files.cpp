#include "suites/training/told_files.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/parse_number.hpp"

namespace suites::training_cases {

namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (text.empty()) throw Unreadable(fmt::format("{} is missing or empty", file.filename().string()));
  return text;
}

// Each with its newline cut off. What stands after the last one is no whole line.
std::vector<std::string> lines_of(const fs::path& file) {
  const std::string text = content(file);
  if (text.back() != '\n') throw Unreadable(fmt::format("{} ends within a line", file.filename().string()));
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> fields_of(const std::string& line, char separator) {
  std::vector<std::string> fields(1);
  for (const char c : line) {
    if (c == separator)
      fields.emplace_back();
    else
      fields.back() += c;
  }
  return fields;
}

template <typename T>
T number(const std::string& text, const std::string& where) {
  const auto value = base::parse_number<T>(text);
  if (!value || !std::isfinite(static_cast<double>(*value)))
    throw Unreadable(fmt::format("{}: '{}' is no finite number", where, text));
  return *value;
}

ToldJson parsed(const std::string& text, const std::string& where) {
  ToldJson json = ToldJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw Unreadable(fmt::format("{} is no JSON object", where));
  return json;
}

at::ScalarType type_named(const std::string& name, const std::string& where) {
  static const std::map<std::string, at::ScalarType> types = {
      {"F64", at::kDouble}, {"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"F16", at::kHalf},
      {"I64", at::kLong},   {"I32", at::kInt},   {"U8", at::kByte},       {"BOOL", at::kBool}};
  const auto found = types.find(name);
  if (found == types.end()) throw Unreadable(fmt::format("{} has the unknown dtype {}", where, name));
  return found->second;
}

at::Tensor tensor_of(const ToldJson& entry, const std::string& data, const std::string& where) {
  const at::ScalarType type = type_named(entry.at("dtype").get<std::string>(), where);
  const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
  const auto offsets = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
  const at::Tensor tensor = at::empty(shape, type);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data.size() ||
      offsets[1] - offsets[0] != tensor.nbytes())
    throw Unreadable(fmt::format("{} does not lie where the header says", where));
  std::memcpy(tensor.mutable_data_ptr(), data.data() + offsets[0], tensor.nbytes());
  return tensor;
}

}  // namespace

std::vector<ToldRow> told_table(const fs::path& file) {
  const auto lines = lines_of(file);
  const auto columns = fields_of(lines.front(), ',');
  std::vector<ToldRow> rows;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::string where = fmt::format("{}:{}", file.filename().string(), i + 1);
    const auto fields = fields_of(lines[i], ',');
    if (fields.size() != columns.size() || columns.front() != "step")
      throw Unreadable(fmt::format("{}: {} fields under {} columns, of which the first is {}", where, fields.size(),
                                   columns.size(), columns.front()));
    ToldRow row{static_cast<std::int64_t>(i) + 1, number<std::int64_t>(fields.front(), where), {}};
    for (std::size_t f = 1; f < fields.size(); ++f) {
      row.fields[columns[f]] = fields[f].empty() ? std::nullopt : std::optional(number<double>(fields[f], where));
    }
    rows.push_back(std::move(row));
  }
  if (rows.empty()) throw Unreadable(fmt::format("{} has no row", file.filename().string()));
  return rows;
}

std::vector<ToldEvent> told_events(const fs::path& file) {
  std::vector<ToldEvent> events;
  for (const std::string& line : lines_of(file)) {
    const auto number_of_line = static_cast<std::int64_t>(events.size()) + 1;
    events.push_back({number_of_line, parsed(line, fmt::format("{}:{}", file.filename().string(), number_of_line))});
  }
  return events;
}

ToldJson told_json(const fs::path& file) { return parsed(content(file), file.filename().string()); }

ToldCheckpoint told_checkpoint(const fs::path& file) {
  const std::string bytes = content(file), name = file.filename().string();
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) throw Unreadable(name + " is shorter than its header");
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > bytes.size() - sizeof length) throw Unreadable(name + " is shorter than its header");
  try {
    const ToldJson header = parsed(bytes.substr(sizeof length, length), name + ": the header");
    const std::string data = bytes.substr(sizeof length + length);
    ToldCheckpoint told;
    told.facts = parsed(header.at("__metadata__").at("facts").get<std::string>(), name + ": the facts");
    for (const auto& [tensor, entry] : header.items()) {
      if (tensor != "__metadata__") told.tensors[tensor] = tensor_of(entry, data, fmt::format("{}: {}", name, tensor));
    }
    return told;
  } catch (const ToldJson::exception& error) {
    throw Unreadable(fmt::format("{}: {}", name, error.what()));
  }
}

// # DTYPE SUMMARY (elements): 90000 in all, train.precision bf16, train.master_weights true
// BFloat16 90000 100.00 %
// PARAM embedding.weight [256,64] BFloat16 optimizer Float, with a Float copy
ToldTypes told_types(const fs::path& file) {
  ToldTypes told;
  for (const std::string& line : lines_of(file)) {
    const auto words = fields_of(line, ' ');
    const std::string where = fmt::format("{}: '{}'", file.filename().string(), line);
    if (words.front() == "#" && words.size() > 4) {
      told.all = number<std::int64_t>(words[4], where);
    } else if (words.front() == "PARAM" && words.size() > 2) {
      told.parameters[words[1]] = line.substr(words[0].size() + words[1].size() + 2);
    } else if (words.size() == 4) {
      told.elements[words[0]] = number<std::int64_t>(words[1], where);
    } else {
      throw Unreadable(where + " is no line of it");
    }
  }
  return told;
}

ToldEnd told_end(const std::string& output) {
  const auto end = output.find_last_not_of('\n');
  const auto begin = end == std::string::npos ? end : output.rfind('\n', end);
  const std::string line = end == std::string::npos ? "" : output.substr(begin == std::string::npos ? 0 : begin + 1);
  ToldEnd told;
  std::istringstream words(line);
  std::string step, loss;
  words >> told.word >> step >> loss >> told.weights;
  const bool named = told.word.ends_with(':') && step.starts_with("step=") && loss.starts_with("loss=") &&
                     told.weights.starts_with("weights=");
  if (!named) throw Unreadable(fmt::format("standard output: '{}' is no last line of a run", line));
  told.word.pop_back();
  told.step = number<std::int64_t>(step.substr(5), line);
  told.loss = number<double>(loss.substr(5), line);
  told.weights = told.weights.substr(8);
  return told;
}

}  // namespace suites::training_cases
