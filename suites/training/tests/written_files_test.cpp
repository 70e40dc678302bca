// written_down is loud for every lie in a file of a healthy run.
#include "suites/training/tests/written.hpp"

#include <ATen/ATen.h>

#include <fstream>
#include <map>
#include <sstream>

#include "nsa/train/checkpoint.hpp"

namespace suites::training_cases {
namespace {

using nsa::train::TrainState;
using Lines = std::vector<std::vector<std::string>>;  // fields

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

}  // namespace
}  // namespace suites::training_cases
