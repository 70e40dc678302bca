#include "harness/provenance.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "harness/process.hpp"
#include "harness/protocol.hpp"
#include "harness/source_hash.hpp"
#include "harness/tests/support/fake_run.hpp"

namespace {

using harness::Json;
using harness::tests::TempFolder;

Json of(const harness::Program& program, const harness::CommandLine& line = {}) {
  return harness::provenance(program, harness::Settings(harness::all_setting_specs(program)), line);
}

TEST(Provenance, HostAndBuildAreThere) {
  const Json json = of({});
  EXPECT_FALSE(json["host"]["hostname"].get<std::string>().empty());
  EXPECT_GT(json["host"]["memory_bytes"].get<std::int64_t>(), 1 << 20);
  EXPECT_GE(json["host"]["cores"].get<int>(), 1);
  EXPECT_FALSE(json["build"]["compiler"].get<std::string>().empty());
  EXPECT_TRUE(json["build"]["source_hash"].is_null());
  EXPECT_TRUE(json["source"]["git_sha"].is_null());
  EXPECT_EQ(json["settings"]["values"]["run.seed"]["origin"], "default");
}

TEST(Provenance, AChangedSourceTreeShows) {
  const TempFolder tree;
  tree.write("CMakeLists.txt", "project(x)");
  harness::Program program;
  program.source_dir = tree.path();
  program.build_id = harness::source_hash(tree.path());
  EXPECT_EQ(of(program)["build"]["source_hash"], program.build_id);
  tree.write("CMakeLists.txt", "project(y)");
  EXPECT_NE(of(program)["build"]["source_hash"], program.build_id);
}

TEST(Provenance, CommitAndDirtiness) {
  const TempFolder tree;
  const std::string folder = tree.path().string();
  const auto git = [&](const std::string& words) {
    return harness::output_of({"sh", "-c", "cd '" + folder + "' && git -c user.name=n -c user.email=e " + words}, 20);
  };
  if (!git("init -q .")) GTEST_SKIP() << "git is not installed";
  tree.write("a", "1");
  ASSERT_TRUE(git("add a") && git("commit -q -m x"));
  harness::Program program;
  program.source_dir = tree.path();
  Json json = of(program);
  EXPECT_EQ(json["source"]["git_sha"].get<std::string>().size(), 40U);
  EXPECT_EQ(json["source"]["dirty"], false);
  tree.write("a", "2");
  EXPECT_EQ(of(program)["source"]["dirty"], true);
}

TEST(Provenance, FilesAndVariablesThatMatter) {
  const TempFolder folder;
  harness::CommandLine line;
  line.config_files = {folder.write("c.yaml", "a")};
  setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:native", 1);
  harness::Program program;
  program.provenance = [](const harness::Settings&) { return Json{{"flags", {{"set", Json::object()}}}}; };
  const Json json = of(program, line);
  unsetenv("PYTORCH_CUDA_ALLOC_CONF");
  EXPECT_EQ(json["environment"]["PYTORCH_CUDA_ALLOC_CONF"], "backend:native");
  EXPECT_EQ(json["settings"]["files"][0]["hash"], "af63dc4c8601ec8c");  // FNV-1a 64 of "a"
  EXPECT_TRUE(json["flags"].contains("set"));
}

}  // namespace
