// write_build_info OUTPUT SOURCE_DIR VERSION BUILD_TYPE COMPILER: writes the definitions of build_info.hpp. Runs in
// every build, and leaves an unchanged file alone so that nothing is compiled again.
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>

#include "harness/source_hash.hpp"

namespace {

struct BuildInfo {
  std::string version, build_id, source_dir, build_type, compiler;
};

std::string definitions(const BuildInfo& info) {
  std::ostringstream text;
  const auto define = [&](const char* name, const std::string& value) {
    text << "const char* const " << name << " = R\"~(" << value << ")~\";\n";
  };
  text << "// Written by write_build_info.cpp; do not edit.\n#include \"build_info.hpp\"\n\nnamespace build_info {\n";
  define("kVersion", info.version);
  define("kBuildId", info.build_id);
  define("kSourceDir", info.source_dir);
  define("kBuildType", info.build_type);
  define("kCompiler", info.compiler);
  text << "}  // namespace build_info\n";
  return text.str();
}

void write_if_changed(const std::filesystem::path& file, const std::string& text) {
  std::ifstream old(file, std::ios::binary);
  if (old && std::string{std::istreambuf_iterator<char>(old), std::istreambuf_iterator<char>()} == text) {
    return;
  }
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  stream.close();
  if (!stream) {
    throw std::runtime_error("cannot write " + file.string());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: write_build_info OUTPUT SOURCE_DIR VERSION BUILD_TYPE COMPILER\n";
    return 2;
  }
  try {
    const BuildInfo info{argv[3], harness::source_hash(argv[2]), argv[2], argv[4], argv[5]};
    write_if_changed(argv[1], definitions(info));
  } catch (const std::exception& error) {
    std::cerr << "write_build_info: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
