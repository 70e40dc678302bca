// The runs that the tests of written_down share: a healthy one of each kind, and any that a test makes worse.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "nsa/train/stream.hpp"
#include "suites/codes.hpp"
#include "suites/probes/one_thread.hpp"
#include "suites/training/made_text.hpp"
#include "suites/training/tests/support.hpp"
#include "suites/training/written_down.hpp"

namespace suites::training_cases {

using namespace training_tests;  // NOLINT
using nsa::train::Batch;
using nsa::train::BatchStream;
using nsa::train::Split;
namespace fs = std::filesystem;

inline fs::path folder_named(const std::string& name) {
  const fs::path folder = fs::temp_directory_path() / ("nsa-written-test-" + std::to_string(getpid()) + "-" + name);
  fs::remove_all(folder);
  return folder;
}

// As the case runs it, with one layer.
inline WrittenTrial quick_trial(WrittenData data, const fs::path& folder) {
  WrittenTrial trial = written_trial(data, data_folder() / "configs/models/tiny.yaml", at::kCPU, folder);
  for (auto& [key, value] : trial.settings)
    if (key == "model.n_layers") value = "1";
  return trial;
}

inline void judge(const WrittenRun& run, RecordingContext& context) {
  judge_ends(run, context);
  judge_batches(run, context);
  judge_files(run, context);
}

// One healthy run of each kind, made when it is first asked for and shared by all tests.
class Written {
 public:
  explicit Written(WrittenData data) : folder_(folder_named(std::string(to_string(data)))) {
    const harness::Settings with = settings();
    RecordingContext context(with);
    run_ = make_written_run(quick_trial(data, folder_), context);
  }
  ~Written() { fs::remove_all(folder_); }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;

  [[nodiscard]] const WrittenRun& run() const { return run_; }

 private:
  fs::path folder_;
  WrittenRun run_;
};

inline const WrittenRun& healthy(WrittenData data) {
  static const Written text(WrittenData::text), packed(WrittenData::packed);
  return (data == WrittenData::packed ? packed : text).run();
}

class WrittenDown : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder); }

  // The healthy run with `change` made to a copy of its files, judged. What was wrong with `file`, or "".
  std::string told_of(const std::string& file, WrittenData data, const std::function<void(const fs::path&)>& change,
                      std::string_view code = codes::kToldOtherwise) {
    WrittenRun run = healthy(data);
    fs::copy(run.folder, folder, fs::copy_options::recursive);
    run.folder = folder;
    change(folder);
    judge_files(run, context);
    fs::remove_all(folder);
    return what_of(file, code);
  }
  std::string told_of(const std::string& file, const std::function<void(const fs::path&)>& change) {
    return told_of(file, WrittenData::text, change);
  }

  // A run whose streams are changed, judged.
  void run_with(WrittenData data, const StreamChange& stream) {
    WrittenTrial trial = quick_trial(data, folder);
    trial.stream = stream;
    judge(make_written_run(trial, context), context);
  }

  [[nodiscard]] std::string what_of(const std::string& file, std::string_view code) const {
    for (const auto& f : context.findings)
      if (f.code == code && f.evidence.value("file", "") == file) return f.evidence.value("what", "nothing compared");
    return "";
  }

  probes::OneThread one_thread;
  harness::Settings with = settings();
  RecordingContext context{with};
  fs::path folder = folder_named("lie");
};

}  // namespace suites::training_cases
