// report.html as a browser lays it out: no word is broken, and the page never scrolls sideways.
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

// Long names wherever a run has names of its own.
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
        }
        suite.cases.push_back(c);
      }
  }
  return run;
}

TEST(Layout, WholeWordsAndNoSidewaysScrollAtAnyWidth) {
  const std::string chromium = browser();
  if (chromium.empty()) GTEST_SKIP() << "no Chromium is installed";
  std::string folder = (fs::temp_directory_path() / "report-layout-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::ofstream(fs::path(folder) / "report.html") << to_html(with_long_names());
  fs::copy_file(REPORTS_TEST_DATA "/layout.html", fs::path(folder) / "layout.html");
  const std::string page = output_of(fmt::format(
      "timeout 120 '{}' --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir='{}/profile' "
      "--allow-file-access-from-files --virtual-time-budget=20000 --dump-dom 'file://{}/layout.html' 2>/dev/null",
      chromium, folder, folder));
  fs::remove_all(folder);
  const std::string mark = "<pre id=\"result\">";
  const std::size_t begin = page.find(mark);
  ASSERT_NE(begin, std::string::npos) << page.substr(0, 500);
  const Json seen = Json::parse(page.substr(begin + mark.size(), page.find("</pre>", begin) - begin - mark.size()));
  ASSERT_EQ(seen.size(), 3U);
  for (const auto& [width, page_seen] : seen.items()) {
    EXPECT_GT(page_seen["words"], 1000) << "the report was not loaded";
    EXPECT_LE(page_seen["wide"], std::stoi(width)) << width << " pixels";
    EXPECT_EQ(page_seen["broken"], Json::array()) << width << " pixels";
  }
}

}  // namespace
}  // namespace reports
