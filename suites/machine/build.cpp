#include "suites/machine/build.hpp"

#include <fmt/format.h>

#include "base/text.hpp"
#include "harness/process.hpp"
#include "suites/codes.hpp"

namespace suites::machine {

namespace {

constexpr double kGitSeconds = 10;

std::string text_of(const Json& build, const char* key) {
  return build.contains(key) && build[key].is_string() ? build[key].get<std::string>() : "";
}

}  // namespace

Inspection judge_build(const Json& build) {
  Inspection result;
  result.subject = "build";
  result.seen = build;
  const std::string compiled = text_of(build, "build_id"), sources = text_of(build, "source_hash");
  if (sources.empty()) {
    result.summary = "build: there is no source tree beside the program to compare with";
    result.seen["compared"] = false;
    result.cannot_tell = true;
    return result;
  }
  result.summary = fmt::format("build {}: the sources beside it are {}", compiled,
                               compiled == sources ? "those that it was built from" : "others");
  result.judgements.push_back(
      {"build.sources", compiled == sources,
       fmt::format("the program was built from sources {}, those beside it are {}: what was changed since is "
                   "not in the binary",
                   compiled, sources),
       codes::kBuildStale, build});
  return result;
}

Git git_in(const std::filesystem::path& folder) {
  return [folder](const std::vector<std::string>& words) {
    std::vector<std::string> line = {"git", "-c", "safe.directory=*", "-C", folder.string()};
    line.insert(line.end(), words.begin(), words.end());
    return harness::output_of(line, kGitSeconds);
  };
}

Inspection judge_fix(const std::string& commit, const Json& build, const Git& git) {
  Inspection result;
  result.subject = "fix";
  result.seen = {{"commit", commit}};
  const auto must = [&](const std::string& name, bool holds, const std::string& failed) {
    result.judgements.push_back({"fix." + name, holds, failed, codes::kFixMissing, result.seen});
    return holds;
  };
  const std::optional<std::string> head = git({"rev-parse", "--verify", "--quiet", "HEAD"});
  if (!must(
          "checkout", head.has_value(),
          fmt::format("nobody can tell whether commit {} is in: there is no git checkout beside the program", commit)))
    return result;
  result.seen["head"] = base::first_line(*head);
  const std::optional<std::string> wanted = git({"rev-parse", "--verify", "--quiet", commit + "^{commit}"});
  if (!must("known", wanted.has_value(),
            fmt::format("the checkout (at {}) does not know commit {}: it was made before the fix",
                        base::first_line(*head), commit)))
    return result;
  const std::optional<std::string> common = git({"merge-base", base::first_line(*wanted), "HEAD"});
  must("contained", common && base::first_line(*common) == base::first_line(*wanted),
       fmt::format("the checkout is at {}, which does not contain commit {}", base::first_line(*head), commit));
  const std::string compiled = text_of(build, "build_id"), sources = text_of(build, "source_hash");
  must("built", !sources.empty() && compiled == sources,
       fmt::format("the program was built from sources {}, the checkout holds {}: commit {} may not be in the binary",
                   compiled, sources.empty() ? "none" : sources, commit));
  result.summary = fmt::format("fix: commit {} is {}", commit, result.sound() ? "in the program" : "missing");
  return result;
}

}  // namespace suites::machine
