#include "harness/source_hash.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

// A small source tree that goes away with the test.
class SourceHash : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(::testing::TempDir()) / (std::string("source_hash_") + test->name() + std::to_string(::getpid()));
    fs::remove_all(root_);
    write("CMakeLists.txt", "project(x)\n");
    write("nsa/CMakeLists.txt", "");
    write("nsa/config.cpp", "int a;\n");
    write("nsa/flash/flash.hpp", "int b;\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& relative, const std::string& content) {
    fs::create_directories((root_ / relative).parent_path());
    std::ofstream(root_ / relative, std::ios::binary) << content;
  }
  [[nodiscard]] std::string hash() const { return harness::source_hash(root_); }

  fs::path root_;
};

TEST_F(SourceHash, ListsWhatIsCompiledInSortedOrder) {
  write("suites/CMakeLists.txt", "");
  write("setup/CMakeLists.txt", "");
  write("setup/cmake/LibTorch.cmake", "");
  write("nsa/kernels/select.cu", "");
  write("nsa/README.md", "not a source");
  write("nsa/tests/config_test.cpp", "not in the binary");
  write("fixtures/text.cpp", "not a component");
  write("build/release/generated.cpp", "");
  const std::vector<fs::path> wanted{"CMakeLists.txt",
                                     "nsa/CMakeLists.txt",
                                     "nsa/config.cpp",
                                     "nsa/flash/flash.hpp",
                                     "nsa/kernels/select.cu",
                                     "setup/CMakeLists.txt",
                                     "setup/cmake/LibTorch.cmake",
                                     "suites/CMakeLists.txt"};
  EXPECT_EQ(harness::hashed_sources(root_), wanted);
}

TEST_F(SourceHash, IsTheSameForTheSameTreeElsewhere) {
  const std::string here = hash();
  const fs::path elsewhere = root_.string() + "_copy";
  fs::remove_all(elsewhere);
  fs::copy(root_, elsewhere, fs::copy_options::recursive);
  EXPECT_EQ(harness::source_hash(elsewhere), here);
  fs::remove_all(elsewhere);
}

// Fixed, because a binary built by one version of this file may be checked by another.
TEST_F(SourceHash, IsFnv1aOverPathsAndContents) {
  fs::remove_all(root_ / "nsa");
  write("CMakeLists.txt", "");
  EXPECT_EQ(hash(), "660ea7a37520a437");
}

TEST_F(SourceHash, ChangesWithContentNameAndNumberOfFiles) {
  const std::string before = hash();
  write("nsa/config.cpp", "int a; \n");
  const std::string edited = hash();
  EXPECT_NE(edited, before);

  write("nsa/config.cpp", "int a;\n");
  EXPECT_EQ(hash(), before);

  fs::rename(root_ / "nsa/config.cpp", root_ / "nsa/konfig.cpp");
  EXPECT_NE(hash(), before);
  fs::rename(root_ / "nsa/konfig.cpp", root_ / "nsa/config.cpp");

  write("nsa/extra.hpp", "");
  EXPECT_NE(hash(), before);
}

TEST_F(SourceHash, TellsWhereOneFileEndsAndTheNextBegins) {
  write("nsa/a.hpp", "xy");
  write("nsa/b.hpp", "z");
  const std::string before = hash();
  write("nsa/a.hpp", "x");
  write("nsa/b.hpp", "yz");
  EXPECT_NE(hash(), before);
}

TEST_F(SourceHash, IgnoresWhatIsNotInTheBinary) {
  const std::string before = hash();
  write("nsa/tests/config_test.cpp", "int c;\n");
  write("reports/README.md", "words\n");
  write("build/release/generated/build_info.hpp", "int d;\n");
  EXPECT_EQ(hash(), before);
}

TEST_F(SourceHash, IsEmptyWithoutSources) { EXPECT_EQ(harness::source_hash(root_ / "nowhere"), ""); }

}  // namespace
