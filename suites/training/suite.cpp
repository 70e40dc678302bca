// The suite `training`: runs of every length on text and random tokens, the guards, resume, and the floors that no
// honest model can go below.
#include <c10/util/Exception.h>

#include "harness/suite.hpp"
#include "suites/probes/autograd_errors.hpp"
#include "suites/subject.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/written_down.hpp"

namespace suites {

using harness::Case;
using harness::Context;
using harness::Level;
using harness::Params;
using nsa::Precision;
using training_cases::Data;
using training_cases::WrittenData;

namespace {

constexpr std::chrono::seconds kLongRun{300};

// An in-place write that autograd refuses is a finding, wherever in training it shows.
std::function<void(Context&)> guarded(std::function<void(Context&)> body) {
  return [body = std::move(body)](Context& context) {
    try {
      body(context);
    } catch (const c10::Error& error) {
      probes::report_inplace_write(context, error);
    }
  };
}

Case standard(std::string name, Params params, std::function<void(Context&)> body) {
  return {.name = std::move(name),
          .params = std::move(params),
          .level = Level::standard,
          .timeout = kLongRun,
          .run = guarded(std::move(body))};
}

std::string text_of(Data data) { return std::string(training_cases::to_string(data)); }
std::string text_of(Precision precision) { return std::string(nsa::to_string(precision)); }

// Runs of 10, 50 and 200 steps. The one that real_text is already is left out. On a GPU the longest are made in bf16
// alone: fp32 at full width does not fit the time.
void plan_runs(const Subject& subject, const harness::Settings& settings, std::vector<Case>& cases) {
  const bool cuda = settings.text("run.device") == "cuda";
  const nsa::TrainConfig configured = model_config(settings).train;
  for (const std::int64_t steps : {10, 50, 200}) {
    for (const Data data : {Data::text, Data::synthetic}) {
      for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        if (cuda && steps == 200 && precision == Precision::fp32) continue;
        if (data == Data::text && precision == configured.precision && steps == configured.steps) continue;
        const training_cases::RunKind kind{data, precision, steps};
        cases.push_back(standard(
            "steps", {{"data", text_of(data)}, {"precision", text_of(precision)}, {"steps", std::to_string(steps)}},
            [subject, kind](Context& context) { training_cases::training_run(subject, context, kind); }));
        // The shortest of those whose pace is judged.
        if (data == Data::text && steps == 50) cases.back().brought_by = {"training.growth_percent"};
      }
    }
  }
}

void plan_resume(const Subject& subject, std::vector<Case>& cases) {
  const std::pair<Data, Precision> kinds[] = {
      {Data::text, Precision::fp32}, {Data::text, Precision::bf16}, {Data::synthetic, Precision::fp32}};
  for (const auto& [data, precision] : kinds) {
    cases.push_back(standard("resume", {{"data", text_of(data)}, {"precision", text_of(precision)}},
                             [subject, data = data, precision = precision](Context& context) {
                               training_cases::resume(subject, context, data, precision);
                             }));
  }
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    cases.push_back(standard(
        "accumulation", {{"precision", text_of(precision)}},
        [subject, precision](Context& context) { training_cases::accumulation(subject, context, precision); }));
  }
}

// Which rows and borders are read does not hang on the device, and is smoke's where there is no GPU to look at.
bool is_of_standard(WrittenData data, bool cuda) {
  return data == WrittenData::shuffled || (cuda && data != WrittenData::text && data != WrittenData::packed);
}

void plan_written_down(const Subject& subject, const harness::Settings& settings, std::vector<Case>& cases) {
  const bool cuda = settings.text("run.device") == "cuda";
  for (const WrittenData data :
       {WrittenData::text, WrittenData::crops, WrittenData::packed, WrittenData::paragraphs, WrittenData::shuffled}) {
    cases.push_back(
        {.name = "written_down",
         .params = {{"data", std::string(training_cases::to_string(data))}},
         .level = is_of_standard(data, cuda) ? Level::standard : Level::smoke,
         .run = guarded([subject, data](Context& context) { training_cases::written_down(subject, context, data); })});
  }
}

std::vector<harness::SettingSpec> settings() {
  using enum harness::SettingType;
  return {
      {.key = "training.steps",
       .type = integer,
       .default_value = "0",
       .meaning = "steps of case real_text; 0: train.steps of the model's configuration",
       .allowed = "0, or 4 and more",
       .minimum = 0},
      {.key = "training.floor_steps",
       .type = integer,
       .default_value = "40",
       .meaning = "steps on random tokens before the loss is held against ln V",
       .allowed = "10 and more",
       .minimum = 10},
      {.key = "training.growth_percent",
       .type = real,
       .default_value = "25",
       .meaning = "step time may grow by this much over a run",
       .allowed = "1 and more",
       .minimum = 1},
  };
}

}  // namespace

harness::Suite training(const Subject& subject) {
  harness::Suite suite;
  suite.name = "training";
  suite.purpose =
      "Runs of 10, 50 and 200 steps lower the loss without an anomaly and never faster than the data allows, keep "
      "their pace and their size, stop before a bad update, resume bit for bit, and write down what they did.";
  suite.requires_suites = {"forward"};
  suite.runs_after = "parity";
  suite.settings = settings();
  suite.sizes = {{"training.steps", 4}, {"training.floor_steps", 10}};
  suite.cases = [subject](const harness::Settings& settings) {
    const auto with_subject = [&](void (*run)(const Subject&, Context&)) {
      return guarded([subject, run](Context& context) { run(subject, context); });
    };
    std::vector<Case> cases = {
        {.name = "real_text", .run = with_subject(training_cases::real_text)},
        {.name = "loss_floor", .run = with_subject(training_cases::loss_floor)},
        {.name = "guards", .run = with_subject(training_cases::guards)},
        {.name = "streams", .run = with_subject(training_cases::streams)},
        {.name = "trainer_parts", .run = with_subject(training_cases::trainer_parts)},
        // What is captured nowhere but on a GPU is the same step in other words elsewhere.
        {.name = "captured_step",

         .level = settings.text("run.device") == "cuda" ? Level::smoke : Level::standard,
         .run = with_subject(training_cases::captured_step)},
    };
    plan_written_down(subject, settings, cases);
    cases.push_back(standard("variants", {}, [subject](Context& c) { training_cases::variants(subject, c); }));
    plan_runs(subject, settings, cases);
    plan_resume(subject, cases);
    cases.push_back(standard("anomaly_stop", {}, [subject](Context& c) { training_cases::anomaly_stop(subject, c); }));
    return cases;
  };
  return suite;
}

}  // namespace suites
