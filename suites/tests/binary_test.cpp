// The binary: what main() says before the harness takes over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
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

}  // namespace
