// written_down: silent on the product, and loud for every lie in a file and every wrong batch.
#include "suites/training/written_down.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <sstream>

#include "nsa/train/checkpoint.hpp"
#include "nsa/train/stream.hpp"
#include "suites/codes.hpp"
#include "suites/probes/one_thread.hpp"
#include "suites/training/claims.hpp"
#include "suites/training/made_text.hpp"
#include "suites/training/tests/support.hpp"

namespace suites::training_cases {
namespace {

using namespace training_tests;  // NOLINT
using nsa::train::Batch;
using nsa::train::BatchStream;
using nsa::train::Split;
using nsa::train::TrainState;
namespace fs = std::filesystem;
using Lines = std::vector<std::vector<std::string>>;  // fields

fs::path folder_named(const std::string& name) {
  const fs::path folder = fs::temp_directory_path() / ("nsa-written-test-" + std::to_string(getpid()) + "-" + name);
  fs::remove_all(folder);
  return folder;
}

// As the case runs it, with one layer.
WrittenTrial quick_trial(WrittenData data, const fs::path& folder) {
  WrittenTrial trial = written_trial(data, data_folder() / "configs/models/tiny.yaml", at::kCPU, folder);
  for (auto& [key, value] : trial.settings)
    if (key == "model.n_layers") value = "1";
  return trial;
}

void judge(const WrittenRun& run, RecordingContext& context) {
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

const WrittenRun& healthy(WrittenData data) {
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

TEST_F(WrittenDown, TheProductTellsWhatItDid) {
  for (const WrittenData data : {WrittenData::text, WrittenData::packed}) judge(healthy(data), context);
  for (const WrittenData data : {WrittenData::crops, WrittenData::shuffled, WrittenData::paragraphs}) {
    fs::remove_all(folder);
    run_with(data, {});
  }
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  EXPECT_EQ(context.checks, 5 * 12 + 2);
}

// -- what is told: the run is healthy, and a file is not

std::string content(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write(const fs::path& file, const std::string& text) { write_text(file, text); }

// Changes the fields of a table; line 0 has the names.
std::function<void(const fs::path&)> in_table(const std::string& name, const std::function<void(Lines&)>& change) {
  return [=](const fs::path& run) {
    Lines lines;
    std::istringstream stream(content(run / name));
    for (std::string line; std::getline(stream, line);) {
      lines.emplace_back();
      std::istringstream fields(line + ",");
      for (std::string field; std::getline(fields, field, ',');) lines.back().push_back(field);
    }
    change(lines);
    std::string text;
    for (const auto& line : lines) {
      for (std::size_t i = 0; i < line.size(); ++i) text += (i > 0 ? "," : "") + line[i];
      text += "\n";
    }
    write(run / name, text);
  };
}

std::size_t column(const Lines& lines, const std::string& name) {
  const auto found = std::find(lines[0].begin(), lines[0].end(), name);
  if (found == lines[0].end()) throw std::logic_error("no column " + name);
  return static_cast<std::size_t>(found - lines[0].begin());
}

// Each row has the value of the row before.
std::function<void(Lines&)> late(const std::string& name) {
  return [name](Lines& lines) {
    const std::size_t c = column(lines, name);
    for (std::size_t i = lines.size() - 1; i > 1; --i) lines[i][c] = lines[i - 1][c];
  };
}
std::function<void(Lines&)> in_row(std::size_t row, const std::string& name,
                                   const std::function<std::string(const std::string&)>& change) {
  return [=](Lines& lines) {
    std::string& field = lines.at(row).at(column(lines, name));
    field = change(field);
  };
}
std::string one_more(const std::string& number) { return std::to_string(std::stoll(number) + 1); }

TEST_F(WrittenDown, ALieInATableIsFound) {
  const auto metrics = [&](const std::function<void(Lines&)>& change) {
    context.findings.clear();
    return told_of("metrics.csv", in_table("metrics.csv", change));
  };
  EXPECT_EQ(metrics(in_row(7, "step", one_more)), "steps");
  EXPECT_EQ(metrics(late("loss")), "loss");
  EXPECT_EQ(metrics(late("grad_norm")), "grad_norm");
  EXPECT_EQ(metrics(in_row(3, "lr", [](const std::string&) { return "0.0007"; })), "lr");
  EXPECT_EQ(metrics(in_row(1, "tokens", [](const std::string& n) { return std::to_string(std::stoll(n) + 4); })),
            "tokens")
      << "with the first token of each row";
  EXPECT_EQ(metrics(late("tokens")), "tokens");
  EXPECT_EQ(metrics(late("seconds")), "tok_per_s");
  EXPECT_EQ(metrics(in_row(3, "validation_loss", [](const std::string&) { return "5.5"; })), "validation_loss");
  EXPECT_EQ(metrics(in_row(4, "validation_loss", [](const std::string&) { return ""; })), "validation loss");
  EXPECT_EQ(metrics(in_row(4, "loss", [](const std::string&) { return "nan"; })), "content");
  EXPECT_EQ(metrics([](Lines& lines) { lines.erase(lines.begin() + 5); }), "steps") << "a row is lost in the resume";
  EXPECT_EQ(metrics([](Lines& lines) { lines.insert(lines.begin() + 4, lines[4]); }), "steps");
  EXPECT_EQ(metrics([](Lines& lines) { lines.resize(1); }), "content");

  const auto validation = [&](const std::function<void(Lines&)>& change) {
    context.findings.clear();
    return told_of("validation.csv", in_table("validation.csv", change));
  };
  EXPECT_EQ(validation(late("loss")), "validation loss");
  EXPECT_EQ(validation(in_row(1, "step", one_more)), "steps");
  EXPECT_EQ(validation(in_row(1, "tokens", one_more)), "tokens");
  EXPECT_EQ(validation(in_row(2, "perplexity", [](const std::string&) { return "12"; })), "perplexity");
}

TEST_F(WrittenDown, AFileThatIsMissingOrTornIsFound) {
  for (const std::string file : {"metrics.csv", "validation.csv", "heartbeat.jsonl", "run.json", "dtypes.txt"}) {
    context.findings.clear();
    EXPECT_EQ(told_of(file, [&](const fs::path& run) { fs::remove(run / file); }), "content") << file;
    context.findings.clear();
    EXPECT_EQ(told_of(file, [&](const fs::path& run) { write(run / file, ""); }), "content") << file;
    context.findings.clear();
    EXPECT_EQ(told_of(file, [&](const fs::path& run) { fs::resize_file(run / file, fs::file_size(run / file) - 9); }),
              "content")
        << file;
  }
}

// Changes the lines of heartbeat.jsonl that tell `event`.
std::function<void(const fs::path&)> in_heartbeat(const std::string& event,
                                                  const std::function<void(nlohmann::json&)>& change) {
  return [=](const fs::path& run) {
    std::istringstream lines(content(run / "heartbeat.jsonl"));
    std::string text;
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json record = nlohmann::json::parse(line);
      if (record.at("event") == event) change(record);
      if (!record.is_null()) text += record.dump() + "\n";
    }
    write(run / "heartbeat.jsonl", text);
  };
}

TEST_F(WrittenDown, ALieInTheHeartbeatIsFound) {
  const auto heartbeat = [&](const std::string& event, const std::function<void(nlohmann::json&)>& change) {
    context.findings.clear();
    return told_of("heartbeat.jsonl", in_heartbeat(event, change));
  };
  const auto next_step = [](nlohmann::json& r) { r["step"] = r["step"].get<int>() + 1; };
  EXPECT_NE(heartbeat("progress", next_step), "");
  EXPECT_NE(heartbeat("checkpoint", next_step), "");
  EXPECT_EQ(heartbeat("finished", [](nlohmann::json& r) { r = nullptr; }), "events and their steps");
  EXPECT_EQ(heartbeat("resume", [](nlohmann::json& r) { r["event"] = "boot"; }), "last_step");
  EXPECT_EQ(heartbeat("validation", [](nlohmann::json& r) { r["loss"] = "NaN"; }), "validation loss");
  EXPECT_EQ(heartbeat("validation", [](nlohmann::json& r) { r["tokens"] = 1; }), "tokens");
  EXPECT_EQ(heartbeat("progress", [](nlohmann::json& r) { r["loss"] = r["loss"].get<double>() + 1e-6; }),
            "loss as it stands elsewhere");
  EXPECT_EQ(heartbeat("checkpoint", [](nlohmann::json& r) { r["bytes"] = 8; }), "bytes");
  EXPECT_EQ(heartbeat("boot", [](nlohmann::json& r) { r["run"] = "another"; }), "run");
  EXPECT_EQ(heartbeat("boot", [](nlohmann::json& r) { r["rss_bytes"] = r["rss_bytes"].get<double>() * 50; }),
            "rss_bytes");
  EXPECT_EQ(heartbeat("progress", [](nlohmann::json& r) { r["gate_branch_shares"][1] = 0.5; }), "gate_branch_shares");
  EXPECT_EQ(heartbeat("progress", [](nlohmann::json& r) { r.erase("gate_entropy_min"); }), "gate_entropy_min");
  EXPECT_EQ(heartbeat("boot", [](nlohmann::json& r) { r["iso"] = "2020-01-31T23:59:59.123Z"; }), "iso");
}

TEST_F(WrittenDown, ALieOfTheRunAboutItselfIsFound) {
  const auto record = [&](const std::function<void(nlohmann::json&)>& change) {
    context.findings.clear();
    return told_of("run.json", [&](const fs::path& run) {
      nlohmann::json json = nlohmann::json::parse(content(run / "run.json"));
      change(json);
      write(run / "run.json", json.dump());
    });
  };
  EXPECT_EQ(record([](nlohmann::json& r) { r["config"]["train.steps"] = "8"; }), "train.steps");
  EXPECT_EQ(record([](nlohmann::json& r) { r["starts"].erase(1); }), "how many");
  EXPECT_EQ(record([](nlohmann::json& r) { r["starts"][1]["arguments"] = r["starts"][0]["arguments"]; }), "arguments");
  EXPECT_EQ(record([](nlohmann::json& r) { r["starts"][0]["device"]["type"] = "cuda:0"; }), "device");

  context.findings.clear();
  EXPECT_EQ(told_of("dtypes.txt",
                    [](const fs::path& run) {
                      std::string text = content(run / "dtypes.txt");
                      const auto at = text.find("BFloat16 optimizer");
                      write(run / "dtypes.txt", text.replace(at, 8, "Float"));
                    }),
            "shape, type and optimizer");

  WrittenRun other = healthy(WrittenData::text);
  std::string& line = other.starts[1].end.output;
  line.back() = '0';
  line += "\n";
  context.findings.clear();
  judge_files(other, context);
  EXPECT_EQ(what_of("standard output", codes::kToldOtherwise), "weights");
}

// Changes the checkpoint of a step.
std::function<void(const fs::path&)> in_checkpoint(int step, const std::function<void(TrainState&)>& change) {
  return [=](const fs::path& run) {
    const fs::path file = run / "checkpoints" / ("step_0000000" + std::to_string(step) + ".safetensors");
    TrainState state = nsa::train::read_checkpoint(file);
    change(state);
    nsa::train::write_checkpoint(file, state);
  };
}

TEST_F(WrittenDown, ALieInACheckpointIsFound) {
  const auto checkpoint = [&](const std::function<void(TrainState&)>& change) {
    context.findings.clear();
    return told_of("checkpoints", in_checkpoint(5, change));
  };
  const std::string name = "layers.0.norm_mlp.weight";
  const SeenStep &before = healthy(WrittenData::text).steps[3], &here = healthy(WrittenData::text).steps[4];
  EXPECT_EQ(checkpoint([](TrainState& s) { s.facts["step"] = 6; }), "step");
  EXPECT_EQ(checkpoint([](TrainState& s) { s.facts["tokens"] = s.facts["tokens"].get<int>() + 1; }), "tokens");
  EXPECT_EQ(checkpoint([&](TrainState& s) { s.facts["data"] = before.position; }), "position in the data");
  EXPECT_EQ(checkpoint([](TrainState& s) { s.facts["loss"] = nullptr; }), "loss");
  EXPECT_EQ(checkpoint([](TrainState& s) { s.facts["config"]["train.lr"] = "0.1"; }), "config");
  EXPECT_EQ(checkpoint([&](TrainState& s) {
              for (const auto& [key, weight] : here.before) s.tensors["model/" + key] = weight;
            }),
            "weights")
      << "those before the update";
  EXPECT_EQ(checkpoint([&](TrainState& s) {
              at::Tensor& copy = s.tensors.at("optimizer/master/" + name);
              copy = copy.to(at::kBFloat16);
            }),
            "type of the wide copy");
  EXPECT_EQ(checkpoint([&](TrainState& s) { s.tensors.erase("optimizer/master/" + name); }), "has a wide copy");
  EXPECT_EQ(checkpoint([&](TrainState& s) {
              at::Tensor& moment = s.tensors.at("optimizer/exp_avg_sq/" + name);
              moment = moment.to(at::kBFloat16);
            }),
            "type of exp_avg_sq");
  EXPECT_EQ(checkpoint([&](TrainState& s) { s.tensors.at("optimizer/step/" + name).sub_(1); }), "updates");
  context.findings.clear();
  EXPECT_EQ(told_of("checkpoints",
                    [&](const fs::path& run) {
                      TrainState old;
                      in_checkpoint(3, [&](TrainState& s) { old = s; })(run);
                      in_checkpoint(5, [&](TrainState& s) {
                        for (auto& [key, tensor] : s.tensors)
                          if (key.starts_with("optimizer/exp_avg/")) tensor = old.tensors.at(key);
                      })(run);
                    }),
            "exp_avg is off by");
  context.findings.clear();
  EXPECT_EQ(
      told_of("checkpoints", [](const fs::path& run) { fs::remove(run / "checkpoints/step_00000005.safetensors"); }),
      "files");
}

TEST_F(WrittenDown, StepsThatAreLostAreFound) {
  WrittenRun run = healthy(WrittenData::text);
  run.steps.pop_back();
  judge(run, context);
  EXPECT_EQ(what_of("the two starts", codes::kToldOtherwise), "steps made");
  run = healthy(WrittenData::text);
  run.starts[1].end.exit_code = 1;
  context.findings.clear();
  judge(run, context);
  EXPECT_EQ(what_of("the two starts", codes::kToldOtherwise), "exit code");
}

TEST_F(WrittenDown, WeightsThatChangeBetweenTwoStepsAreFound) {
  WrittenRun run = healthy(WrittenData::packed);
  SeenStep& resumed = run.steps[static_cast<std::size_t>(run.cut)];
  resumed.before = run.steps[0].before;
  judge_files(run, context);
  EXPECT_TRUE(found(context, codes::kToldOtherwise)) << listed(context);
}

// -- what is read: the program runs on a stream that is wrong

// The product's stream with one thing done otherwise.
class Wrong : public BatchStream {
 public:
  using Next = std::function<Batch(BatchStream&)>;
  using Seek = std::function<void(BatchStream&, const nlohmann::json&)>;
  Wrong(std::shared_ptr<BatchStream> source, Next next, Seek seek)
      : source_(std::move(source)), next_(std::move(next)), seek_(std::move(seek)) {}
  Batch next() override { return next_ ? next_(*source_) : source_->next(); }
  [[nodiscard]] nlohmann::json position() const override { return source_->position(); }
  void seek(const nlohmann::json& position) override {
    if (seek_)
      seek_(*source_, position);
    else
      source_->seek(position);
  }

 private:
  std::shared_ptr<BatchStream> source_;
  Next next_;
  Seek seek_;
};

StreamChange in_stream(Split split, const Wrong::Next& next, const Wrong::Seek& seek = {}) {
  return [=](std::shared_ptr<BatchStream> source, Split of, int) -> std::shared_ptr<BatchStream> {
    if (of != split) return source;
    return std::make_shared<Wrong>(std::move(source), next, seek);
  };
}

// `change` is made to the batch of this number, from 1, of the first start.
StreamChange in_batch(int number, const std::function<void(Batch&)>& change) {
  return in_stream(Split::train, [=, count = std::make_shared<int>(0)](BatchStream& source) {
    Batch batch = source.next();
    if (++*count == number) change(batch);
    return batch;
  });
}

TEST_F(WrittenDown, ABatchThatComesAgainIsFound) {
  run_with(WrittenData::text, in_stream(Split::train, [count = 0, last = Batch()](BatchStream& source) mutable {
             Batch batch = source.next();
             if (++count != 4) last = batch;
             return last;
           }));
  EXPECT_EQ(what_of("rows of a pass", codes::kBatchTwice), "row") << listed(context);
}

TEST_F(WrittenDown, ARowThatStandsTwiceInABatchIsFound) {
  run_with(WrittenData::text, in_batch(2, [](Batch& batch) {
             batch.tokens = at::stack({batch.tokens[0], batch.tokens[0]});
           }));
  EXPECT_EQ(what_of("rows of a pass", codes::kBatchTwice), "row") << listed(context);
}

TEST_F(WrittenDown, ACropThatComesAgainIsFound) {
  run_with(WrittenData::crops, in_stream(Split::train, [count = 0, first = Batch()](BatchStream& source) mutable {
             Batch batch = source.next();
             if (++count == 1) first = batch;
             return count == 3 ? first : batch;
           }));
  EXPECT_EQ(what_of("rows of a pass", codes::kBatchTwice), "row") << listed(context);
  EXPECT_FALSE(found(context, codes::kBatchOrder)) << listed(context);
}

TEST_F(WrittenDown, RowsInAnotherOrderAreFound) {
  run_with(WrittenData::text, in_batch(3, [](Batch& batch) { batch.tokens = batch.tokens.flip(0); }));
  EXPECT_EQ(what_of("batches of training", codes::kBatchOrder), "row 1") << listed(context);
  EXPECT_FALSE(found(context, codes::kBatchTwice)) << listed(context);
}

TEST_F(WrittenDown, TrainingOnWhatIsHeldOutIsFound) {
  WrittenRun run = healthy(WrittenData::text);
  const PlainData data(run.config.train);
  auto& row = run.steps[1].batches[0].rows[0];
  ASSERT_GE(data.validation.tokens.size(), row.size());
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<unsigned char>(data.validation.tokens[i]);
  judge_batches(run, context);
  ASSERT_TRUE(found(context, codes::kBatchOrder)) << listed(context);
  EXPECT_EQ(finding(context, codes::kBatchOrder).evidence["as_if"], "what is held out for validation were trained on");
}

// The batch that stood at this place of the first pass.
TEST_F(WrittenDown, AnOrderThatIsTheSameInEveryPassIsFound) {
  const auto first = std::make_shared<std::map<nlohmann::json, Batch>>();
  run_with(WrittenData::shuffled, in_stream(Split::train, [first](BatchStream& source) {
             const Batch batch = source.next();
             return first->try_emplace(source.position().at("row"), batch).first->second;
           }));
  EXPECT_EQ(what_of("batches of training", codes::kBatchOrder), "order of the pass") << listed(context);
  EXPECT_FALSE(found(context, codes::kBatchTwice)) << listed(context);
}

TEST_F(WrittenDown, AShuffledRowOfAnotherPlaceIsFound) {
  run_with(WrittenData::shuffled, in_batch(2, [](Batch& batch) { batch.tokens = batch.tokens.roll(1, 1); }));
  EXPECT_EQ(what_of("batches of training", codes::kBatchOrder), "row 1") << listed(context);
}

TEST_F(WrittenDown, ATokenThatIsNotTheFilesIsFound) {
  for (const WrittenData data : {WrittenData::text, WrittenData::crops}) {
    context.findings.clear();
    run_with(data, in_batch(2, [](Batch& batch) { batch.tokens[0][7] = 7; }));
    EXPECT_EQ(what_of("batches of training", codes::kBatchOrder), "row 1") << listed(context);
    fs::remove_all(folder);
  }
}

TEST_F(WrittenDown, AResumeOneBatchEarlyIsFound) {
  auto positions = std::make_shared<std::vector<nlohmann::json>>();  // before each batch of the first start
  run_with(WrittenData::text,
           [=](std::shared_ptr<BatchStream> source, Split of, int start) -> std::shared_ptr<BatchStream> {
             if (of == Split::validation) return source;
             const auto next = [=](BatchStream& inner) {
               if (start == 0) positions->push_back(inner.position());
               return inner.next();
             };
             const auto seek = [=](BatchStream& inner, const nlohmann::json&) { inner.seek(positions->back()); };
             return std::make_shared<Wrong>(std::move(source), next, seek);
           });
  EXPECT_EQ(what_of("rows of a pass", codes::kBatchTwice), "row") << listed(context);
}

TEST_F(WrittenDown, AResumeOneBatchLateIsFound) {
  run_with(WrittenData::packed, in_stream(Split::train, {}, [](BatchStream& source, const nlohmann::json& position) {
             source.seek(position);
             (void)source.next();
           }));
  EXPECT_EQ(what_of("batches of training", codes::kBatchOrder), "row 1") << listed(context);
  EXPECT_EQ(finding(context, codes::kBatchOrder).evidence["as_if"],
            "a resumed run went on elsewhere in the data than where the run before it stood");
  EXPECT_FALSE(found(context, codes::kBatchTwice)) << listed(context);
}

TEST_F(WrittenDown, AValidationThatGoesOnIsFound) {
  run_with(WrittenData::crops, in_stream(Split::validation, {}, [](BatchStream&, const nlohmann::json&) {}));
  EXPECT_EQ(what_of("batches of validation", codes::kToldOtherwise), "batch 1, row 1") << listed(context);
}

TEST_F(WrittenDown, RefusalsOfTheProductHold) {
  const WrittenTrial trial = quick_trial(WrittenData::text, folder);
  ASSERT_TRUE(make_written_run(trial, context).finished());
  judge_refusals(trial, context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  EXPECT_EQ(context.checks, 8);
}

TEST_F(WrittenDown, ADivergenceOfTheProductIsStoppedWithItsCheckpoints) {
  judge_divergence(quick_trial(WrittenData::text, folder), context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  EXPECT_EQ(context.checks, 2);
}

TEST_F(WrittenDown, ARowThatStandsTwiceIsFound) {
  write(folder / "metrics.csv", "step,loss\n1,5.5\n2,5.4\n");
  judge_rows(folder / "metrics.csv", {1, 2}, context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  write(folder / "metrics.csv", "step,loss\n1,5.5\n2,5.4\n2,5.4\n");
  judge_rows(folder / "metrics.csv", {1, 2}, context);
  EXPECT_EQ(finding(context, codes::kGuardMissed).evidence["promise"],
            "a resume cuts metrics.csv back to its checkpoint");
}

TEST_F(WrittenDown, AValidationOnTrainingDataIsFound) {
  for (const WrittenData data : {WrittenData::text, WrittenData::crops, WrittenData::packed}) {
    context.findings.clear();
    const WrittenTrial trial = quick_trial(data, folder);
    run_with(data, [&](std::shared_ptr<BatchStream> source, Split of, int) -> std::shared_ptr<BatchStream> {
      if (of == Split::train) return source;
      const bool packed = data == WrittenData::packed;
      return nsa::train::open_stream(
          {.data = (folder / (packed ? "documents.jsonl" : "prose.txt")).string(),
           .batch_size = packed ? 1 : 2,
           .seq_len = 48,
           .validation_share = 0.25,
           .packed = packed,
           .order = data == WrittenData::crops ? nsa::train::Order::random_crops : nsa::train::Order::sequential});
    });
    EXPECT_EQ(what_of("batches of validation", codes::kToldOtherwise), "batch 1, row 1") << listed(context);
    fs::remove_all(folder);
  }
}

// Changes the borders of the first batch that has one inside.
StreamChange in_borders(const std::function<at::Tensor(const at::Tensor&)>& change) {
  return in_stream(Split::train, [=, done = std::make_shared<bool>(false)](BatchStream& source) {
    Batch batch = source.next();
    if (!*done && batch.cu_seqlens && batch.cu_seqlens->numel() > 2) {
      batch.cu_seqlens = change(*batch.cu_seqlens);
      *done = true;
    }
    return batch;
  });
}

TEST_F(WrittenDown, DocumentsThatAreCutOtherwiseAreFound) {
  const auto documents = [&](const StreamChange& stream) {
    context.findings.clear();
    run_with(WrittenData::packed, stream);
    fs::remove_all(folder);
    return what_of("documents of the batches", codes::kDocuments);
  };
  EXPECT_EQ(documents(in_borders([](const at::Tensor& cu) {
              return at::cat({cu.slice(0, 0, 1), cu.slice(0, 2)});
            })),
            "borders")
      << "two documents are one";
  EXPECT_EQ(what_of("loss of packed batches", codes::kDocuments), "loss") << listed(context);
  EXPECT_EQ(documents(in_borders([](const at::Tensor& cu) {
              at::Tensor moved = cu.clone();
              moved[1] -= 1;
              return moved;
            })),
            "borders");
  EXPECT_NE(documents(in_borders([](const at::Tensor& cu) {
              at::Tensor shorter = cu.clone();
              shorter[-1] -= 1;
              return shorter;
            })),
            "")
      << "the end of the last one";
  EXPECT_NE(documents(in_stream(Split::train,
                                [](BatchStream& source) {
                                  Batch batch = source.next();
                                  batch.cu_seqlens.reset();
                                  return batch;
                                })),
            "")
      << "targets across the borders";
}

// -- the parts

TEST_F(WrittenDown, PlainDataIsTheStreamsWholePass) {
  for (const WrittenData kind : {WrittenData::text, WrittenData::packed}) {
    const nsa::TrainConfig config = healthy(kind).config.train;
    const PlainData data(config);
    for (const Split split : {Split::train, Split::validation}) {
      const auto wanted = (split == Split::train ? data.training : data.validation).batches(config);
      const auto stream = nsa::train::open_stream({.data = config.data,
                                                   .batch_size = config.batch_size,
                                                   .seq_len = config.seq_len,
                                                   .split = split,
                                                   .validation_share = config.validation_share,
                                                   .packed = config.packed});
      for (const PlainBatch& batch : wanted) ASSERT_EQ(plain(stream->next()), batch);
      EXPECT_FALSE(stream->next().tokens.defined());
      EXPECT_GE(wanted.size(), 2U);
    }
  }
}

// The case's documents are as awkward as they should be.
TEST_F(WrittenDown, TheDocumentsAreAwkward) {
  const nsa::TrainConfig config = healthy(WrittenData::packed).config.train;
  const PlainSplit training = PlainData(config).training;
  const auto S = static_cast<std::size_t>(config.seq_len);
  std::size_t longest = 0, ones = 0;
  for (std::size_t i = 0; i + 1 < training.begins.size(); ++i) {
    longest = std::max(longest, training.begins[i + 1] - training.begins[i]);
    ones += training.begins[i + 1] - training.begins[i] == 1 ? 1 : 0;
  }
  EXPECT_GT(longest, 2 * S);
  EXPECT_GT(ones, 2 * S);
  EXPECT_LT(training.batches(config).size(), (training.tokens.size() - 2) / S + 1) << "a row that predicts nothing";
  EXPECT_NE(training.tokens.find("北"), std::string::npos);
  EXPECT_LT(training.batches(config).size(), 14U) << "the pass ends within the run";
}

TEST_F(WrittenDown, NothingComparedIsNoSuccess) {
  Claims("a file", codes::kToldOtherwise).conclude(context);
  Claims nan("a file", codes::kToldOtherwise);
  nan.near("here", "loss", std::nan(""), 1, 1);
  nan.conclude(context);
  Claims missing("a file", codes::kToldOtherwise);
  missing.near("here", "loss", std::nullopt, 1, 1);
  missing.conclude(context);
  EXPECT_EQ(context.findings.size(), 3U);
}

}  // namespace
}  // namespace suites::training_cases
