// report.html as a browser lays it out, on screens and on paper: no word is broken, nothing must be scrolled sideways
// to be read, and a narrow page is not taller than its text needs.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "reports/tests/support/sample.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

namespace fs = std::filesystem;

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  std::array<char, 4096> buffer{};
  for (std::size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), n);
  pclose(pipe);
  return text;
}

std::string browser() {
  std::string name = output_of("command -v chromium || command -v chromium-browser || command -v google-chrome");
  return name.substr(0, name.find('\n'));
}

// Long names wherever a run has names of its own, and tables with more columns than a narrow page has room for.
reports::Run with_long_names() {
  reports::Run run = sample::mixed();
  const std::string path =
      "/a/rather/long/path/to/a/run/folder/that/somebody/made/for/a/night/of/training/events.jsonl";
  run.provenance["source"] = path;
  for (Suite& suite : run.suites) {
    const std::vector<Case> few = suite.cases;
    for (int i = 0; i < 20; ++i)
      for (Case c : few) {
        c.hash += std::to_string(i);
        c.id += fmt::format("[backend=reference,op=attend_compressed,S={},dtype=bfloat16]", i);
        for (Finding& f : c.findings) {
          f.message += " torch.autograd.set_detect_anomaly(True,check_nan=False) in " + path;
          f.evidence["where"] = path;
          f.evidence["digest"] = std::string(90, 'f');
        }
        c.checks.push_back({"relative error of dK against the reference's in fp64", false, "3.2e-2 at [0,1,2,3]",
                            "<=", "4 times 1.2e-3, the error of the naive computation in bfloat16", ""});
        const Json row = {{"shape", "S=2048 B=1 accumulation=4"},
                          {"S", 2048},
                          {"B", 1},
                          {"accumulation", 4},
                          {"step_ms", 123.25},
                          {"tokens_per_second", 38400},
                          {"low", 38100},
                          {"high", 38700},
                          {"word", "SLOW"},
                          {"routes", "attend_selected=flash_varlen, attend_window=flash_dense"}};
        c.facts["shapes"] = Json::array({row, row, row});
        suite.cases.push_back(c);
      }
  }
  return run;
}

// What layout.html saw of the report; null when it could not.
Json look_at(const std::string& chromium, const std::string& report) {
  std::string folder = (fs::temp_directory_path() / "report-layout-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return nullptr;
  std::ofstream(fs::path(folder) / "report.html") << report;
  fs::copy_file(REPORTS_TEST_DATA "/layout.html", fs::path(folder) / "layout.html");
  const std::string page = output_of(fmt::format(
      "timeout 120 '{}' --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir='{}/profile' "
      "--allow-file-access-from-files --virtual-time-budget=20000 --dump-dom 'file://{}/layout.html' 2>/dev/null",
      chromium, folder, folder));
  fs::remove_all(folder);
  const std::string mark = "<pre id=\"result\">";
  const std::size_t begin = page.find(mark);
  if (begin == std::string::npos) return nullptr;
  return Json::parse(page.substr(begin + mark.size(), page.find("</pre>", begin) - begin - mark.size()));
}

TEST(Layout, WholeWordsAndNothingToScrollSidewaysOnAnyScreenAndOnPaper) {
  const std::string chromium = browser();
  if (chromium.empty()) GTEST_SKIP() << "no Chromium is installed";
  const Json seen = look_at(chromium, to_html(with_long_names()));
  ASSERT_EQ(seen.size(), 4U);
  for (const auto& [where, page] : seen.items()) {
    EXPECT_GT(page["words"], 1000) << "the report was not loaded";
    EXPECT_LE(page["wide"], page["width"]) << where;
    EXPECT_EQ(page["broken"], Json::array()) << where;
    EXPECT_EQ(page["scrolled"], Json::array()) << where;
  }
  // A third of the width makes at most three times the lines; one word a line, or one letter, would make many more.
  EXPECT_LE(seen["390"]["height"].get<double>(), 3 * seen["1300"]["height"].get<double>());
}

}  // namespace
}  // namespace reports
