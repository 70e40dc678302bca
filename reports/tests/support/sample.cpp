#include "reports/tests/support/sample.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "reports/causes.hpp"
#include "reports/journal.hpp"

namespace reports::sample {

namespace {

constexpr const char* kBegin = R"({"event": "run_begin", "schema": "nsa-validate/event", "schema_version": "1.0.0",
 "run": {"id": "r1", "argv": ["nsa-validate"], "level": "smoke", "device": "cpu", "master_seed": 42},
 "plan": {"suites": [{"name": "a", "purpose": "p", "requires": [], "cases": [
   {"id": "a/one", "hash": "00000001", "name": "one", "params": {}, "level": "smoke", "required": true},
   {"id": "a/two", "hash": "00000002", "name": "two", "params": {}, "level": "smoke", "required": false}]}]}})";

}  // namespace

Run run_of(const std::vector<Status>& statuses) {
  Run run;
  run.id = "r1";
  run.argv = Json::array({"nsa-validate", "run"});
  run.level = "smoke";
  run.device = "cuda";
  run.started = "2026-11-21T01:31:05.000Z";
  run.ended = "2026-11-21T01:31:15.000Z";
  run.duration_s = 10;
  run.harness_s = 0.25;
  run.complete = true;
  run.provenance = Json::object();
  run.faults = Json::array();
  Suite suite{"alpha", "shows that alpha holds", {}, {}, 0};
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    Case c;
    c.suite = "alpha";
    c.name = "case" + std::to_string(i);
    c.id = "alpha/" + c.name;
    c.hash = "0000000" + std::to_string(i % 10);
    c.params = Json::object();
    c.facts = Json::object();
    c.level = "smoke";
    c.status = statuses[i];
    suite.cases.push_back(c);
  }
  run.suites.push_back(suite);
  return run;
}

Finding finding(Severity severity, const std::string& category) {
  return {"NSA-T001", severity,      category,        "A title",     "a message",
          "a cause",  "a next step", "a repro --now", Json::object()};
}

Run mixed() {
  Run run = read_journal(std::filesystem::path(REPORTS_TEST_DATA) / "mixed.events.jsonl");
  find_causes(run, {});
  return run;
}

Journal::Journal() { add(kBegin); }

Journal& Journal::add(const std::string& event) {
  Json object = Json::parse(event);
  object["t"] = "2026-11-21T01:31:" + std::string(seq_ < 10 ? "0" : "") + std::to_string(seq_) + ".000Z";
  object["seq"] = seq_++;
  text_ += object.dump() + "\n";
  return *this;
}

Journal& Journal::raw(const std::string& text) {
  text_ += text;
  return *this;
}

std::filesystem::path Journal::write() const { return write(text_); }

std::filesystem::path Journal::write(const std::string& text) {
  const auto file = fresh_folder() / kJournalFile;
  std::ofstream(file, std::ios::binary) << text;
  return file;
}

void expect_golden(const std::string& name, const std::string& text) {
  const auto golden = std::filesystem::path(REPORTS_TEST_DATA) / name;
  if (std::filesystem::exists(golden) && read_file(golden) == text) return;
  const auto actual = fresh_folder() / name;
  std::ofstream(actual, std::ios::binary) << text;
  ADD_FAILURE() << "differs from the golden file; read the difference, and if it is meant:\n  cp " << actual.string()
                << " " << golden.string();
}

std::string read_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  EXPECT_TRUE(in) << file;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::filesystem::path fresh_folder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string("reports_test.") + test->test_suite_name() + "." + test->name();
  for (char& c : name) c = c == '/' ? '_' : c;
  const auto folder = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace reports::sample
