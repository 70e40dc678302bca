// From raw stacks to readable ones: the names of functions, threads at one place once.
#include <cxxabi.h>
#include <elf.h>
#include <errno.h>  // program_invocation_name
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <utility>

#include "base/stacks.hpp"

namespace base {

namespace {

struct Symbol {
  std::uint64_t begin, end;
  std::string name;
};

// The functions of an ELF file's own table, sorted; empty when it has none (stripped) or is not to be read.
std::vector<Symbol> read_symbols(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const auto read = [&file](std::uint64_t at, auto* to, std::size_t count) {
    file.seekg(static_cast<std::streamoff>(at));
    file.read(reinterpret_cast<char*>(to), static_cast<std::streamsize>(count * sizeof *to));
    return file.good();
  };
  constexpr std::uint64_t kMostBytes = 1 << 28;
  Elf64_Ehdr header;
  if (!read(0, &header, 1) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr))
    return {};
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (!read(header.e_shoff, sections.data(), sections.size())) return {};
  std::vector<Symbol> symbols;
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const Elf64_Shdr& names_at = sections[section.sh_link];
    if (section.sh_size > kMostBytes || names_at.sh_size > kMostBytes) continue;
    std::vector<Elf64_Sym> entries(section.sh_size / sizeof(Elf64_Sym));
    std::string names(names_at.sh_size, '\0');
    if (!read(section.sh_offset, entries.data(), entries.size()) ||
        !read(names_at.sh_offset, names.data(), names.size()))
      return {};
    for (const Elf64_Sym& entry : entries) {
      if (ELF64_ST_TYPE(entry.st_info) == STT_FUNC && entry.st_size > 0 && entry.st_name < names.size())
        symbols.push_back({entry.st_value, entry.st_value + entry.st_size, names.c_str() + entry.st_name});
    }
  }
  std::sort(symbols.begin(), symbols.end(), [](const Symbol& a, const Symbol& b) { return a.begin < b.begin; });
  return symbols;
}

// The function of `path` at `offset`; nullptr when its table does not tell.
const Symbol* function_at(const std::string& path, std::uint64_t offset) {
  static std::map<std::string, std::vector<Symbol>> tables;  // by the one thread that reads stacks
  const auto [table, unread] = tables.try_emplace(path, std::vector<Symbol>{});
  if (unread) table->second = read_symbols(path);
  const auto after = std::upper_bound(table->second.begin(), table->second.end(), offset,
                                      [](std::uint64_t at, const Symbol& symbol) { return at < symbol.begin; });
  return after != table->second.begin() && offset < std::prev(after)->end ? &*std::prev(after) : nullptr;
}

// "f<int, ...>(g)" for long lists of template arguments.
std::string without_long_arguments(const std::string& name) {
  constexpr std::size_t kLong = 40;
  std::string text;
  std::vector<std::size_t> open;  // where in `text`
  for (std::size_t i = 0; i < name.size(); ++i) {
    text += name[i];
    const bool of_operator = text.ends_with("operator<") || text.ends_with("operator>") || text.ends_with("->");
    if (of_operator) continue;
    if (name[i] == '<') open.push_back(text.size());
    if (name[i] != '>' || open.empty()) continue;
    if (text.size() - open.back() > kLong) text = text.substr(0, open.back()) + "...>";
    open.pop_back();
  }
  return text;
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  const std::string readable = status == 0 ? text.get() : name;
  return without_long_arguments(
      readable.substr(0, readable.find(" [clone ")));  // of a function that the compiler has split
}

// "path(name+0x1a)[0x...]", "path(+0x1a)[0x...]" or "[0x...]", as backtrace_symbols_fd(3) writes; other lines stay.
std::string readable_frame(const std::string& line) {
  const auto open = line.rfind('('), plus = line.rfind("+0x"), close = line.rfind(")[0x");
  if (line.starts_with("thread ")) return line;
  if (open == std::string::npos || plus == std::string::npos || close == std::string::npos || open > plus ||
      plus > close)  // of no file that is known, or not of its own place
    return line.find("[0x") != std::string::npos && line.ends_with("]") ? "  ? " + line : line;
  const std::string path = line.substr(0, open);
  std::string offset = line.substr(plus, close - plus), name = line.substr(open + 1, plus - open - 1);
  // Of this program: argv[0] need not be a path, nor lead from here.
  const bool own = path == program_invocation_name || path == "/proc/self/exe";
  if (name.empty()) {  // `offset` is that in the file
    const std::uint64_t at = std::strtoull(offset.c_str(), nullptr, 16);
    // A frame holds the address after the call, which may be the next function's.
    if (const Symbol* function = function_at(own ? "/proc/self/exe" : path, at - 1)) {
      name = function->name;
      offset = fmt::format("+{:#x}", at - function->begin);
    }
  }
  std::error_code ignored;
  const auto file = own ? std::filesystem::read_symlink("/proc/self/exe", ignored) : std::filesystem::path(path);
  return fmt::format("  {}{} ({})", name.empty() ? "?" : demangled(name), offset, file.filename().string());
}

}  // namespace

std::string readable_stacks(const std::string& raw) {
  struct Part {  // a thread, or a line that is of none
    std::string head;
    std::vector<std::string> frames;
    int like_it = 0;
  };
  std::vector<Part> parts;
  int repeated = 0;  // a recursion
  bool from_kernel = false;
  const auto end_repetition = [&] {
    if (repeated > 0) parts.back().frames.push_back(fmt::format("  ... {} more of it", repeated));
    repeated = 0;
  };
  const auto state = [](const Part& part) {
    return part.head.substr(std::min(part.head.rfind(", state "), part.head.size()));
  };
  // Pools have many threads that all wait at one place.
  const auto end_part = [&] {
    if (parts.empty()) return;
    end_repetition();
    const Part& last = parts.back();
    if (last.frames.empty()) return;
    const auto same = std::find_if(parts.begin(), parts.end() - 1, [&](const Part& other) {
      return other.frames == last.frames && state(other) == state(last);
    });
    if (same == parts.end() - 1) return;
    ++same->like_it;
    parts.pop_back();
  };
  std::istringstream stream(raw);
  for (std::string line; std::getline(stream, line);) {
    line = readable_frame(line);
    if (!line.starts_with("  ")) {
      end_part();
      parts.push_back({line, {}});
      from_kernel = false;
      continue;
    }
    if (std::exchange(from_kernel, false)) continue;
    if (parts.empty()) parts.emplace_back();
    auto& frames = parts.back().frames;
    if (!frames.empty() && line == frames.back()) {
      ++repeated;
      continue;
    }
    end_repetition();
    if (line.starts_with("  base::(anonymous namespace)::on_")) {  // the handler: neither it nor how it was called
      frames.clear();
      from_kernel = true;
      continue;
    }
    frames.push_back(line);
  }
  end_part();
  std::string text;
  for (const Part& part : parts) {
    if (!part.head.empty() || part.frames.empty()) text += part.head + "\n";
    for (const std::string& frame : part.frames) text += frame + "\n";
    if (part.like_it > 0)
      text += fmt::format("  and {} more thread{} there\n", part.like_it, part.like_it > 1 ? "s" : "");
  }
  return text;
}

std::string top_function(const std::string& readable) {
  std::istringstream lines(readable);
  int threads = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("thread ") && ++threads > 1) break;
    const auto open = line.rfind(" ("), plus = line.rfind("+0x", open);
    if (!line.starts_with("  ") || line.starts_with("  ?") || open == std::string::npos || plus == std::string::npos)
      continue;
    std::string name = line.substr(2, plus - 2);
    const std::string file = line.substr(open + 2);
    const bool of_system = file.starts_with("libc.so") || file.starts_with("libstdc++") ||
                           file.starts_with("ld-linux") || file.starts_with("linux-vdso") ||
                           file.starts_with("libpthread") || file.starts_with("libgcc");
    // Of a lambda only std::function's part has a name; what called that says more.
    if (!of_system && !name.starts_with("base::") && !name.starts_with("std::") && !name.starts_with("void std::"))
      return name;
  }
  return "";
}

}  // namespace base
