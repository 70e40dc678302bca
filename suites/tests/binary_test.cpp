// The binary: what main() says before the harness takes over.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

using testing::HasSubstr;

struct Ran {
  int code = -1;
  std::string out;  // standard output of the shell's command
};

Ran shell(const std::string& command) {
  Ran ran;
  std::FILE* pipe = popen(command.c_str(), "r");
  for (int c = 0; pipe != nullptr && (c = std::fgetc(pipe)) != EOF;) ran.out += static_cast<char>(c);
  const int status = pipe == nullptr ? -1 : pclose(pipe);
  if (WIFEXITED(status)) ran.code = WEXITSTATUS(status);
  return ran;
}

const std::string kMisspelt = "NSA_USE_FA=1 " NSA_VALIDATE_BINARY " ";
constexpr const char* kWarning =
    "nsa-validate: warning: NSA_USE_FA is set and means nothing; did you mean NSA_USE_FA2?\n";

TEST(Binary, AMisspeltFlagIsToldOnceByEveryVerb) {
  for (const char* verb : {"dry-run --suite forward --device cpu", "list", "explain NSA-A004", "doctor --device cpu",
                           "report nowhere", "no-such-verb"}) {
    const std::string err = shell(kMisspelt + verb + " 2>&1 >/dev/null").out;
    EXPECT_EQ(err.find(kWarning), 0U) << verb << "\n" << err;
    EXPECT_EQ(err.rfind(kWarning), 0U) << verb << "\n" << err;
  }
}

// It is said before anything else can have looked whether it can be said.
TEST(Binary, AMisspeltFlagThatCannotBeToldThereIsToldOnTheOtherStream) {
  for (const char* lost : {"2>&-", "2>/dev/full"}) {
    const Ran ran = shell(kMisspelt + "version " + lost);
    EXPECT_EQ(ran.code, 4) << lost;
    EXPECT_THAT(ran.out, HasSubstr(kWarning)) << lost;
    EXPECT_THAT(ran.out, HasSubstr("nsa-validate 0.")) << lost << ": the rest is done as ever";
  }
}

// What a failing case leaves repeats it, also with a part of the model's configuration set anew.
TEST(Binary, ABundleOfAPlantedFaultIsReplayedWithTheConfigurationThatItHad) {
  const std::string folder = (std::filesystem::path(testing::TempDir()) / fmt::format("replay-{}", getpid())).string();
  const std::string run = folder + "/run", again = folder + "/again";
  EXPECT_EQ(shell(NSA_VALIDATE_BINARY " --case 's_sweep/length[S=512]' --inject attend-nan-at-512 --device cpu --set "
                                      "nsa.w=24 --set model.n_layers=1 --quiet --out " +
                  run + " 2>&1")
                .code,
            1);
  const Ran ran = shell(NSA_VALIDATE_BINARY " replay " + run + " --out " + again + " 2>&1");
  EXPECT_EQ(ran.code, 1) << ran.out;
  EXPECT_THAT(ran.out, HasSubstr("here:    fail, NSA-A001 (block), stage layers.#.attention.o"));
  EXPECT_THAT(ran.out, testing::EndsWith("replay: the same failure\n"));
  std::string journal;
  std::getline(std::ifstream(again + "/run/events.jsonl"), journal);
  EXPECT_THAT(journal, HasSubstr("\"nsa.w\":\"24\""));
  std::filesystem::remove_all(folder);
}

// An implementation can end whoever asked it. Nothing tells who has sent a SIGKILL; the finding says who could have.
TEST(Binary, AWorkerThatDiesInACallOfAnImplementationNamesTheCall) {
  if (!NSA_TEST_PYTHON_HAS_TORCH) GTEST_SKIP() << NSA_TEST_PYTHON << " cannot import torch";
  const std::string folder = (std::filesystem::path(testing::TempDir()) / fmt::format("killed-{}", getpid())).string();
  const Ran ran = shell(NSA_VALIDATE_BINARY " --implementation " NSA_SOURCE_FOLDER
                                            "/adapters/tests/lying/kills_its_parent.py --python " NSA_TEST_PYTHON
                                            " --device cpu --case 'parity/op[backend=implementation,dtype=fp32,"
                                            "op=attend_window]' --out " +
                        folder + " 2>/dev/null");
  std::filesystem::remove_all(folder);
  EXPECT_EQ(ran.code, 5);
  EXPECT_THAT(ran.out, HasSubstr("died by SIGKILL"));
  EXPECT_THAT(ran.out, testing::ContainsRegex("it waited for attend_window of the implementation, whose process [0-9]+ "
                                              "was alive, and may have been ended by it"));
  EXPECT_THAT(ran.out, HasSubstr("by that implementation, or by somebody else"));
}

}  // namespace
