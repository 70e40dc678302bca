// Implementations that are not ours, run by the suites: right ones are silent, and each that lies is found by its code.
#include <gtest/gtest.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <regex>

#include "harness/journal_writer.hpp"
#include "harness/suite.hpp"
#include "suites/codes.hpp"
#include "suites/judged.hpp"
#include "suites/locations.hpp"
#include "suites/records.hpp"
#include "suites/registry.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites {
namespace {

const std::filesystem::path kAdapters = NSA_SOURCE_FOLDER "/adapters";

harness::Settings settings_for(const std::filesystem::path& adapter) {
  std::vector<harness::SettingSpec> specs = harness::own_settings();
  const auto add = [&](const std::vector<harness::SettingSpec>& more) {
    specs.insert(specs.end(), more.begin(), more.end());
  };
  add(common_settings());
  for (const harness::Suite& suite : all_suites(Subject(std::make_shared<Seams>()))) add(suite.settings);
  harness::Settings settings(specs);
  settings.set("run.device", "cpu", "test");
  settings.set("implementation", (kAdapters / adapter).string(), "test");
  settings.set("python", NSA_TEST_PYTHON, "test");
  settings.set("python_timeout_s", "8", "test");
  settings.set("s_sweep.lengths", "[512]", "test");
  return settings;
}

// Of this process; deleted when it ends.
const std::filesystem::path& run_folder() {
  struct Folder {
    std::string path = (std::filesystem::temp_directory_path() / "implementation_run.XXXXXX").string();
    std::filesystem::path made = mkdtemp(path.data());
    ~Folder() { std::filesystem::remove_all(made); }
  };
  static const Folder folder;
  return folder.made;
}

std::vector<tests::RunCase> run(const std::string& adapter, const std::string& suite_name, const std::string& filter) {
  const harness::Settings settings = settings_for(adapter);
  const Subject subject(std::make_shared<Seams>());
  for (harness::Suite& suite : all_suites(subject))
    if (suite.name == suite_name)
      return tests::run_suite(recorded(std::move(suite), subject), settings, filter, harness::Level::smoke,
                              run_folder());
  throw std::logic_error("no suite is called " + suite_name);
}

struct Lie {
  const char *adapter, *suite, *cases;
  std::string_view code;
};
void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.adapter; }

class Implementation : public testing::Test {
 protected:
  void SetUp() override {
    if (!NSA_TEST_PYTHON_HAS_TORCH) GTEST_SKIP() << NSA_TEST_PYTHON << " cannot import torch";
  }
};
class Lying : public Implementation, public testing::WithParamInterface<Lie> {};

TEST_P(Lying, IsFoundByItsCode) {
  const Lie& lie = GetParam();
  std::string found;
  for (const auto& c : run(std::string("tests/lying/") + lie.adapter + ".py", lie.suite, lie.cases)) {
    found += c.id + ": " + c.exception;
    for (const auto& f : c.context.findings) found += f.code + " " + f.message + "\n";
    if (c.context.grave_codes().contains(std::string(lie.code))) return;
  }
  ADD_FAILURE() << lie.adapter << " was not found by " << lie.code << ", but:\n" << found;
}

INSTANTIATE_TEST_SUITE_P(
    Adapters, Lying,
    testing::Values(
        Lie{"window_plus_one", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]",
            codes::kOutputBudget},
        Lie{"window_from_the_far_end", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]",
            codes::kOutputBudget},
        Lie{"ties_the_other_way", "parity", "equal_scores", codes::kSelectionDiffers},
        Lie{"nan_at_513", "s_sweep", "op=attend_window", codes::kNonFiniteForward},
        Lie{"detaches_k", "parity", "op[backend=implementation,dtype=fp32,op=attend_selected]", codes::kGraphBreak},
        Lie{"other_bits_each_time", "parity", "repeatable[backend=implementation,dtype=fp32,op=attend_window]",
            codes::kImplementationBits},
        Lie{"other_dtype", "parity", "dtype=bf16", codes::kImplementationForm},
        Lie{"writes_into_q", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]",
            codes::kImplementationWrites},
        Lie{"leaks", "throughput", "implementation_memory[op=attend_window]", codes::kImplementationGrows},
        Lie{"sleeps", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]", codes::kImplementationDied},
        Lie{"exits", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]", codes::kImplementationDied},
        Lie{"segfaults", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]",
            codes::kImplementationDied},
        Lie{"raises_above_64", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]",
            codes::kImplementationRaised},
        Lie{"interrupts_itself", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]",
            codes::kImplementationRaised},
        Lie{"wrong_shape", "parity", "dtype=fp32", codes::kImplementationForm},
        Lie{"lse_in_base_2", "parity", "op[backend=implementation,dtype=fp32,op=attend", codes::kOutputBudget},
        Lie{"ignores_documents", "parity", "packed[", codes::kPackedDiffers},
        Lie{"heads_modulo_groups", "parity", "op[backend=implementation,dtype=fp32", codes::kOutputBudget},
        Lie{"gradient_times_two", "parity", "op[backend=implementation,dtype=fp32", codes::kGradientBudget},
        Lie{"ignores_gates", "parity", "op=combine", codes::kOutputBudget},
        Lie{"backward_not_implemented", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]",
            codes::kImplementationRaised},
        Lie{"gradient_wrong_when_packed", "parity", "packed[backend=implementation,dtype=fp32,op=attend_window]",
            codes::kGradientBudget},
        Lie{"last_row_lost_above_300", "parity", "op[S=515,backend=implementation,dtype=fp32,op=attend_window]",
            codes::kOutputBudget},
        Lie{"forces_one_block_more", "parity", "op[backend=implementation,dtype=fp32,op=select]",
            codes::kSelectionDiffers},
        Lie{"chooses_by_nothing", "parity", "op[backend=implementation,dtype=fp32,op=select]",
            codes::kSelectionDiffers},
        Lie{"ties_claimed_higher", "parity", "equal_scores[backend=implementation,dtype=fp32,op=select]",
            codes::kSelectionDiffers},
        Lie{"no_lse", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]", codes::kImplementationForm},
        Lie{"writes_into_cu_seqlens", "parity", "packed[backend=implementation,dtype=fp32,op=attend_window]",
            codes::kImplementationWrites},
        Lie{"hides_nan_that_comes_back", "parity", "nan_visible[backend=implementation,dtype=fp32,op=attend_window]",
            codes::kNonFiniteMask},
        Lie{"hides_nan_in_gradients", "parity", "nan_visible[backend=implementation,dtype=fp32,op=combine]",
            codes::kNonFiniteMask},
        Lie{"attention_forgets_the_block_before", "parity", "op[backend=implementation,dtype=fp32,op=attention]",
            codes::kOutputBudget}),
    [](const auto& tested) { return std::string(tested.param.adapter); });

// What a finding says of the script that repeats it, for each finding that has one.
std::vector<harness::Json> scripts_of(const std::vector<tests::RunCase>& cases) {
  std::vector<harness::Json> scripts;
  for (const auto& c : cases)
    for (const auto& f : c.context.findings)
      if (f.evidence.contains("python")) scripts.push_back(f.evidence["python"]);
  return scripts;
}

struct Ended {
  int status = 0;  // of wait()
  std::string said;
};
// In another folder, without any variable of ours.
Ended run_alone(const harness::Json& script) {
  const std::string line = "cd / && exec env -i PYTHONDONTWRITEBYTECODE=1 " + script.at("command").get<std::string>();
  Ended ended;
  FILE* pipe = popen((line + " 2>&1").c_str(), "r");
  std::array<char, 4096> part{};
  for (std::size_t size = 1; size > 0;) {
    size = fread(part.data(), 1, part.size(), pipe);
    ended.said.append(part.data(), size);
  }
  ended.status = pclose(pipe);
  return ended;
}

struct Repeated {
  const char *adapter, *suite, *cases;
  const char* said;  // a regular expression
  int signal = 0;    // that ends the script
};
void PrintTo(const Repeated& repeated, std::ostream* out) { *out << repeated.adapter; }

// The first finding of a case comes with a script that needs nothing of ours, and shows what was found.
class Repeating : public Implementation, public testing::WithParamInterface<Repeated> {};
TEST_P(Repeating, ShowsItWithoutUs) {
  const Repeated& wanted = GetParam();
  const auto cases = run(std::string("tests/lying/") + wanted.adapter + ".py", wanted.suite, wanted.cases);
  const auto scripts = scripts_of(cases);
  ASSERT_FALSE(scripts.empty());
  EXPECT_LE(scripts.size(), cases.size());
  const harness::Json& script = scripts.front();
  ASSERT_TRUE(script.contains("command")) << script;
  EXPECT_EQ(cases.front().context.artifacts.front(), script["script"].get<std::string>());
  const Ended ended = run_alone(script);
  EXPECT_EQ(WIFSIGNALED(ended.status) ? WTERMSIG(ended.status) : 0, wanted.signal);
  EXPECT_TRUE(std::regex_search(ended.said, std::regex(wanted.said))) << ended.said;
  EXPECT_EQ(ended.said.find("NumPy"), std::string::npos) << ended.said;
  const bool raised = ended.said.find("Traceback") != std::string::npos;
  EXPECT_EQ(ended.status == 0, wanted.signal == 0 && !raised) << ended.said;

  std::ifstream text(run_folder() / script["script"].get<std::string>());
  int lines = 0;
  for (std::string line; std::getline(text, line); lines += line.empty() || line[0] == '#' ? 0 : 1) {
    if (const auto path = line.find(kAdapters.string()); path != std::string::npos)
      line.erase(path, kAdapters.string().size());  // as long as the checkout's place makes it
    EXPECT_LE(line.size(), 120U) << line;
  }
  EXPECT_LE(lines, 20);
}
INSTANTIATE_TEST_SUITE_P(
    Adapters, Repeating,
    testing::Values(
        Repeated{"window_plus_one", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]",
                 "o torch.float32 [^\n]*\n[^\n]*\n    difference: 0 of [0-9]+ not finite, the others up to 0\\.[1-9]"},
        Repeated{"nan_at_513", "s_sweep", "op=attend_window", "o torch[^\n]*: ([1-9][0-9]*) of \\1 not finite"},
        Repeated{"gradient_times_two", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]",
                 "gradient of k [^\n]*\n[^\n]*\n    difference: 0 of [0-9]+ not finite, the others up to [1-9]"},
        Repeated{"detaches_k", "parity", "op[backend=implementation,dtype=fp32,op=attend_selected]",
                 "gradient of k None"},
        Repeated{"ignores_documents", "parity", "packed[backend=implementation,dtype=fp32,op=attend_selected]",
                 "o torch.float32 [^\n]*\n[^\n]*\n    difference: 0 of [0-9]+ not finite, the others up to [1-9]"},
        Repeated{"writes_into_q", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]",
                 "inputs that it wrote to: \\['q'\\]"},
        Repeated{"raises_above_64", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]",
                 "ValueError: 83 tokens are too many"},
        Repeated{"wrong_shape", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]",
                 "o torch.float32 \\[2, 6, 83, 24\\]"},
        Repeated{"segfaults", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]", "", SIGSEGV}),
    [](const auto& tested) { return std::string(tested.param.adapter); });

TEST_F(Implementation, AFindingStaysOneWhereNoScriptCanBeWritten) {
  const std::filesystem::path artifacts = run_folder() / "artifacts";
  std::filesystem::remove_all(artifacts);
  std::ofstream(artifacts) << "in the way";
  const auto cases =
      run("tests/lying/window_plus_one.py", "parity", "op[backend=implementation,dtype=fp32,op=attend_window]");
  std::filesystem::remove(artifacts);
  ASSERT_EQ(cases.size(), 1U);
  EXPECT_TRUE(cases[0].context.grave_codes().contains(std::string(codes::kOutputBudget)));
  EXPECT_TRUE(scripts_of(cases).empty());
  EXPECT_EQ(cases[0].exception, "");
  EXPECT_FALSE(cases[0].context.facts.at("python repro").at("not_written").get<std::string>().empty());
}

// Nothing is wrong with these, whatever they print or return.
class Right : public Implementation, public testing::WithParamInterface<const char*> {};
TEST_P(Right, IsSilent) {
  int judged = 0;
  for (const auto& c : run(GetParam(), "parity", "dtype=fp32")) {
    EXPECT_EQ(c.exception, "") << c.id;
    EXPECT_TRUE(c.context.grave_codes().empty()) << c.id << ": " << c.context.findings.front().message;
    EXPECT_TRUE(c.context.artifacts.empty()) << c.id;
    judged += c.skipped ? 0 : 1;
  }
  EXPECT_GT(judged, 3);
}
INSTANTIATE_TEST_SUITE_P(Adapters, Right,
                         testing::Values("pytorch.py", "skeleton.py", "tests/lying/right_window_plus_one.py",
                                         "tests/lying/right_lse_base_2.py", "tests/lying/right_lse_of_one.py",
                                         "tests/lying/right_ties_higher.py", "tests/lying/right_scores_of_its_own.py",
                                         "tests/lying/floods_stdout.py", "tests/lying/prints_json.py"),
                         [](const auto& tested) { return std::filesystem::path(tested.param).stem().string(); });

TEST_F(Implementation, WhatIsNotClaimedIsNotApplicable) {
  for (const auto& c : run("skeleton.py", "parity", "op=combine")) EXPECT_TRUE(c.skipped) << c.id;
}

// It chooses blocks by itself, and here they are given: our own functions would pass in its name.
TEST_F(Implementation, ACaseThatNeverReachesItIsNotApplicable) {
  const auto cases = run("tests/lying/right_attention_alone.py", "parity", "dtype=fp32,op=attend]");
  EXPECT_FALSE(cases.empty());
  for (const auto& c : cases) EXPECT_TRUE(c.skipped) << c.id;
}

// Where the choice is its own, only rows near a tie are left out.
TEST_F(Implementation, AttentionWithItsOwnChoiceIsCompared) {
  const auto cases = run("tests/lying/right_attention_alone.py", "parity", "op=attention]");
  ASSERT_EQ(cases.size(), 12U);
  for (const auto& c : cases) {
    EXPECT_FALSE(c.skipped) << c.id;
    EXPECT_TRUE(c.context.grave_codes().empty()) << c.id << ": " << c.context.findings.front().message;
  }
  EXPECT_GT(cases.front().context.metrics.at("rows that are compared"), 90);
}

TEST_F(Implementation, WhatCannotBeJudgedIsRefusedBeforeTheRun) {
  EXPECT_THROW((void)described_implementation(settings_for("no_such_file.py")), harness::UsageError);
  EXPECT_THROW((void)described_implementation(settings_for("tests/lying/contradicts_itself.py")), harness::UsageError);
  EXPECT_THROW((void)described_implementation(settings_for("tests/lying/import_error.py")),
               harness::InfrastructureError);
  harness::Settings settings = settings_for("skeleton.py");
  settings.set("python", "/no/such/python", "test");
  EXPECT_THROW((void)described_implementation(settings), harness::InfrastructureError);
}

// As a worker runs a case of a run that was planned by another process.
std::vector<tests::RecordingContext::Found> found_after_planning(const std::string& adapter) {
  const harness::Settings settings = settings_for(adapter);
  const harness::Json planned = {{"implementation", described_implementation(settings)}};
  const Subject subject(std::make_shared<Seams>());
  std::vector<tests::RecordingContext::Found> found;
  for (const harness::Case& c : recorded(parity(subject), subject).cases(settings)) {
    if (c.name != "op" || case_id("parity", c).find("op=combine") == std::string::npos) continue;
    tests::RecordingContext context(settings, "parity/op");
    context.provenance = planned;
    context.folder = run_folder();
    c.run(context);
    found.insert(found.end(), context.findings.begin(), context.findings.end());
  }
  return found;
}

TEST_F(Implementation, WhatDescribesItselfOtherwiseInAnotherProcessIsToldOnceWithBothValues) {
  EXPECT_TRUE(found_after_planning("pytorch.py").empty());
  const auto found = found_after_planning("tests/lying/describes_itself_otherwise.py");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].code, codes::kImplementationDescribes);
  const harness::Json version = found[0].evidence["differ"]["version"];
  EXPECT_NE(version["was"], version["is"]);
  EXPECT_NE(found[0].message.find(version["was"].get<std::string>()), std::string::npos) << found[0].message;
  EXPECT_NE(found[0].message.find(version["is"].get<std::string>()), std::string::npos) << found[0].message;
  EXPECT_FALSE(found[0].evidence["differ"].contains("name"));
}

TEST_F(Implementation, AllSuitesAreSilentOnARightOne) {
  for (const char* suite : {"autograd", "s_sweep", "throughput"})
    for (const auto& c : run("pytorch.py", suite, "op=attend_window")) {
      EXPECT_EQ(c.exception, "") << c.id;
      EXPECT_TRUE(c.context.grave_codes().empty()) << c.id << ": " << c.context.findings.front().message;
      EXPECT_FALSE(c.skipped) << c.id;
    }
}

}  // namespace
}  // namespace suites
