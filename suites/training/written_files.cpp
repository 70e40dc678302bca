// What a run wrote, file by file, against what a witness saw and what a twin computes from it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numbers>
#include <set>

#include "suites/codes.hpp"
#include "suites/training/memory_in_use.hpp"
#include "suites/training/written_figures.hpp"

namespace suites::training_cases {

namespace {

using harness::Context;
using harness::Json;
namespace fs = std::filesystem;

constexpr double kSameNumber = 1e-9;  // relative: the same arithmetic on what was told

Json number_or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

class FileJudge {
 public:
  FileJudge(const WrittenRun& run, Context& context)
      : run_(run), train_(run.config.train), context_(context), steps_(run), figures_(run) {}

  void run() {
    judge("checkpoints", [this](Claims& claims) { judge_steps(run_, figures_, claims, context_); });
    judge("metrics.csv", [this](Claims& claims) { judge_metrics(claims); });
    judge("validation.csv", [this](Claims& claims) { judge_validation(claims); });
    judge("heartbeat.jsonl", [this](Claims& claims) { judge_heartbeat(claims); });
    judge("run.json", [this](Claims& claims) { judge_record(claims); });
    judge("dtypes.txt", [this](Claims& claims) { judge_types(claims); });
    judge("standard output", [this](Claims& claims) { judge_ends(claims); });
  }

 private:
  template <typename Body>
  void judge(const std::string& file, const Body& body) {
    context_.phase(file);
    Claims claims(file, codes::kToldOtherwise);
    try {
      body(claims);
    } catch (const Unreadable& error) {
      claims.wrong("the whole file", "content", error.what(), "what its name says");
    } catch (const ToldJson::exception& error) {
      claims.wrong("the whole file", "content", error.what(), "what its name says");
    }
    claims.conclude(context_);
  }

  void judge_metrics(Claims& claims) {
    const auto rows = told_table(run_.folder / "metrics.csv");
    judge_row_steps(claims, rows, steps_.all(&WrittenSteps::logged));
    double seconds = 0;
    std::int64_t before = 0;
    for (const ToldRow& row : rows) {
      if (figures_.at(row.step) == nullptr || row.step <= before) continue;  // told by judge_row_steps
      const std::string where = fmt::format("line {}, step {}", row.line, row.step);
      const auto field = [&](const char* name) { return field_of(row, name); };
      figures_.loss(claims, where, row.step, field("loss"));
      figures_.norm_and_rate(claims, where, row.step, field("grad_norm"), field("lr"));
      claims.equal(where, "tokens", number_or_null(field("tokens")), figures_.at(row.step)->tokens);
      if (steps_.validated(row.step))
        figures_.validation_loss(claims, where, row.step, field("validation_loss"));
      else
        claims.holds(row.fields.contains("validation_loss") && !field("validation_loss"), where, "validation_loss",
                     number_or_null(field("validation_loss")), "none");
      judge_times(claims, where, row, {before, seconds});
      seconds = field("seconds").value_or(NAN);
      before = row.step;
    }
    double whole = 0;
    for (const WrittenRun::Start& start : run_.starts) whole += start.seconds;
    claims.holds(seconds > 0 && seconds <= whole, "the last line", "seconds", reports::number(seconds),
                 fmt::format("within the {} of the program", whole));
  }

  static std::optional<double> field_of(const ToldRow& row, const std::string& name) {
    const auto found = row.fields.find(name);
    return found == row.fields.end() ? std::nullopt : found->second;
  }

  void judge_row_steps(Claims& claims, const std::vector<ToldRow>& rows, const std::vector<std::int64_t>& wanted) {
    std::vector<std::int64_t> told;
    for (const ToldRow& row : rows) told.push_back(row.step);
    claims.equal("the first column", "steps", told, wanted);
  }

  // The rates of a row are those of the steps since the row before.
  struct RowBefore {
    std::int64_t step = 0;
    double seconds = 0;
  };
  void judge_times(Claims& claims, const std::string& where, const ToldRow& row, const RowBefore& before) {
    const double seconds = field_of(row, "seconds").value_or(NAN) - before.seconds;
    const auto tokens = static_cast<double>(figures_.at(row.step)->tokens -
                                            (before.step > 0 ? figures_.at(before.step)->tokens : std::int64_t{0}));
    const double rate = tokens / seconds, each = seconds / static_cast<double>(row.step - before.step);
    claims.near(where, "tok_per_s", field_of(row, "tok_per_s"), rate, 1e-3 * rate);
    claims.near(where, "step_s", field_of(row, "step_s"), each, 1e-3 * each);
    const double p50 = field_of(row, "fetch_p50_ms").value_or(NAN), p95 = field_of(row, "fetch_p95_ms").value_or(NAN);
    claims.holds(seconds > 0 && p50 >= 0 && p95 >= p50 && p95 <= 1e3 * seconds, where, "fetch_p50_ms, fetch_p95_ms",
                 Json::array({reports::number(p50), reports::number(p95)}),
                 fmt::format("in order, within {} ms", 1e3 * seconds));
  }

  void judge_validation(Claims& claims) {
    const auto rows = told_table(run_.folder / "validation.csv");
    judge_row_steps(claims, rows, steps_.all(&WrittenSteps::validated));
    for (const ToldRow& row : rows) {
      if (figures_.at(row.step) == nullptr || !steps_.validated(row.step)) continue;  // told by judge_row_steps
      const std::string where = fmt::format("line {}, step {}", row.line, row.step);
      const double told = field_of(row, "loss").value_or(NAN), seconds = field_of(row, "seconds").value_or(NAN);
      figures_.validation_loss(claims, where, row.step, field_of(row, "loss"));
      claims.near(where, "perplexity", field_of(row, "perplexity"), std::exp(told), kSameNumber * std::exp(told));
      claims.near(where, "bits_per_token", field_of(row, "bits_per_token"), told / std::numbers::ln2, kSameNumber);
      claims.equal(where, "tokens", number_or_null(field_of(row, "tokens")),
                   figures_.at(row.step)->validation.predictions);
      claims.holds(seconds > 0, where, "seconds", reports::number(seconds), "above 0");
    }
  }

  // What heartbeat.jsonl must tell besides what may happen at any time (beat, slow, ...), "event@step", in order.
  [[nodiscard]] std::vector<std::string> wanted_events() const {
    std::vector<std::string> events;
    for (std::int64_t step = 0; step <= steps_.last(); ++step) {
      if (step > 0 && steps_.validated(step)) events.push_back(fmt::format("validation@{}", step));
      if (step > 0 && steps_.logged(step)) events.push_back(fmt::format("progress@{}", step));
      if (step > 0 && steps_.saved(step)) events.push_back(fmt::format("checkpoint@{}", step));
      if (step > 0 && steps_.ends_a_start(step)) events.push_back(fmt::format("finished@{}", step));
      if (step == 0 || step == run_.cut) events.push_back(fmt::format("{}@{}", step == 0 ? "boot" : "resume", step));
    }
    return events;
  }

  void judge_heartbeat(Claims& claims) {
    static const std::set<std::string> kAnyTime = {"beat", "slow", "lost_output", "not_captured", "strict_fallback"};
    const auto events = told_events(run_.folder / "heartbeat.jsonl");
    const ToldJson record = told_json(run_.folder / "run.json");
    std::vector<std::string> told;
    double time = 0;
    for (const ToldEvent& event : events) {
      const std::string where = fmt::format("line {}", event.line), name = event.record.value("event", "?");
      const std::int64_t step = event.record.value("step", std::int64_t{-1});
      const double ts = number_in(event.record, "ts").value_or(NAN);
      claims.equal(where, "run", member(event.record, "run"), member(record, "run_id"));
      claims.equal(where, "pid", member(event.record, "pid"), ::getpid());
      claims.holds(ts >= time, where, "ts", reports::number(ts), fmt::format("not before {}", time));
      time = ts;
      std::tm moment{};
      const char* const end = ::strptime(event.record.value("iso", "").c_str(), "%Y-%m-%dT%H:%M:%S.", &moment);
      claims.holds(end != nullptr && static_cast<double>(::timegm(&moment)) == std::floor(ts), where, "iso",
                   member(event.record, "iso"), fmt::format("the same moment as ts, {:.3f}", ts));
      judge_memory(claims, where, event.record);
      if (kAnyTime.contains(name)) continue;
      told.push_back(fmt::format("{}@{}", name, step));
      judge_event(claims, fmt::format("{}, {} of step {}", where, name, step), name, step, event.record);
    }
    claims.equal("all lines", "events and their steps", told, wanted_events());
  }

  // What this process, and torch in it, could have had at that time.
  void judge_memory(Claims& claims, const std::string& where, const ToldJson& record) const {
    constexpr double kLeast = 16 << 20, kMost = 1.05;  // the kernel counts in portions, thread by thread
    const double resident = number_in(record, "rss_bytes").value_or(NAN);
    const auto peak = static_cast<double>(peak_resident_bytes());
    claims.holds(resident >= kLeast && resident <= kMost * peak, where, "rss_bytes", reports::number(resident),
                 fmt::format("at most {:.0f}, this process's peak", peak));
    if (!run_.device.is_cuda()) return;
    const double allocated = number_in(record, "gpu_allocated_bytes").value_or(NAN),
                 most = number_in(record, "gpu_allocated_peak_bytes").value_or(NAN),
                 reserved = number_in(record, "gpu_reserved_bytes").value_or(NAN);
    claims.holds(allocated >= 0 && allocated <= most && allocated <= reserved, where,
                 "gpu_allocated_bytes, gpu_allocated_peak_bytes, gpu_reserved_bytes",
                 Json::array({reports::number(allocated), reports::number(most), reports::number(reserved)}),
                 "the first at most the others");
  }

  static void judge_gates(Claims& claims, const std::string& where, const GateFigures& seen, const ToldJson& record) {
    constexpr double kSlack = 5e-3;  // of shares and nats: what a twin in the same precision is off by
    const auto near = [&](const char* name, double value) {
      claims.near(where, name, number_in(record, name), value, kSlack);
    };
    near("gate_entropy_mean", seen.entropy_mean);
    near("gate_entropy_min", seen.entropy_min);
    near("gate_max_gate", seen.largest);
    near("gate_collapsed_share", seen.collapsed);
    const ToldJson shares = record.value("gate_branch_shares", ToldJson::array()),
                   layers = record.value("gate_entropy_per_layer", ToldJson::object());
    for (std::size_t i = 0; i < seen.shares.size(); ++i)
      claims.near(where, "gate_branch_shares",
                  i < shares.size() && shares[i].is_number() ? std::optional(shares[i].get<double>()) : std::nullopt,
                  seen.shares[i], kSlack);
    for (const auto& [layer, entropy] : seen.entropy_of_layer)
      claims.near(where, "gate_entropy_per_layer, " + layer, number_in(layers, layer.c_str()), entropy, kSlack);
  }

  void judge_event(Claims& claims, const std::string& where, const std::string& event, std::int64_t step,
                   const ToldJson& record) {
    if (event == "boot" || event == "resume")
      claims.equal(where, "last_step", member(record, "last_step"), event == "boot" ? run_.cut : steps_.last());
    if (figures_.at(step) == nullptr) return;  // step 0 of the boot, or told by judge_heartbeat
    if (event == "progress") {
      figures_.loss(claims, where, step, number_in(record, "loss"));
      figures_.norm_and_rate(claims, where, step, number_in(record, "grad_norm"), number_in(record, "lr"));
      claims.equal(where, "tokens", member(record, "tokens"), figures_.at(step)->tokens);
      judge_gates(claims, where, figures_.at(step)->gates, record);
    } else if (event == "validation") {
      figures_.validation_loss(claims, where, step, number_in(record, "loss"));
      claims.equal(where, "tokens", member(record, "tokens"), figures_.at(step)->validation.predictions);
    } else if (event == "checkpoint") {
      std::error_code error;
      const auto bytes = fs::file_size(run_.folder / "checkpoints" / checkpoint_name(step), error);
      claims.equal(where, "file", member(record, "file"), checkpoint_name(step));
      claims.equal(where, "bytes", member(record, "bytes"), error ? Json("no file") : Json(bytes));
    }
  }

  void judge_record(Claims& claims) {
    const ToldJson record = told_json(run_.folder / "run.json");
    claims.holds(record.value("run_id", "") != "", "run_id", "run_id", member(record, "run_id"), "an id");
    const ToldJson config = record.at("config"), wanted = ToldJson(nsa::flatten(run_.config));
    for (const auto& [key, value] : wanted.items())
      claims.equal("config", key, member(config, key.c_str()), Json(value));
    claims.equal("config", "keys", config.size(), wanted.size());
    const ToldJson& starts = record.at("starts");
    claims.equal("starts", "how many", starts.size(), run_.starts.size());
    for (std::size_t i = 0; i < std::min(starts.size(), run_.starts.size()); ++i) {
      const std::string where = fmt::format("start {}", i + 1);
      claims.equal(where, "arguments", member(starts[i], "arguments"), run_.starts[i].arguments);
      claims.equal(where, "pid", member(starts[i], "pid"), ::getpid());
      claims.equal(where, "device", member(starts[i].at("device"), "type"), run_.device.is_cuda() ? "cuda:0" : "cpu");
      for (const auto& [name, value] : nsa::flatten(nsa::resolve(nsa::read_environment())))
        claims.equal(where, "flag " + name, member(starts[i].at("flags").at(name), "value"), value);
    }
  }

  void judge_types(Claims& claims) {
    const ToldTypes told = told_types(run_.folder / "dtypes.txt");
    std::map<std::string, std::int64_t> elements;
    std::int64_t all = 0;
    for (const auto& [name, weight] : run_.steps.back().after) {
      const std::string type = c10::toString(weight.scalar_type());
      const bool copied = weight.element_size() < 4 && train_.master_weights;
      const auto found = told.parameters.find(name);
      claims.equal("PARAM " + name, "shape, type and optimizer",
                   found == told.parameters.end() ? "missing" : found->second,
                   fmt::format("[{}] {} optimizer {}", fmt::join(weight.sizes(), ","), type,
                               copied ? "Float, with a Float copy" : type));
      elements[type] += weight.numel();
      all += weight.numel();
    }
    claims.equal("PARAM", "parameters", told.parameters.size(), run_.steps.back().after.size());
    claims.equal("summary", "elements", told.all, all);
    claims.equal("summary", "elements by type", told.elements, elements);
  }

  void judge_ends(Claims& claims) {
    for (std::size_t i = 0; i < run_.starts.size(); ++i) {
      const std::string where = fmt::format("last line of start {}", i + 1);
      const std::int64_t step = i == 0 ? run_.cut : steps_.last();
      const ToldEnd told = told_end(run_.starts[i].end.output);
      claims.equal(where, "word", told.word, "final");
      claims.equal(where, "step", told.step, step);
      claims.equal(where, "weights", told.weights, run_.steps[static_cast<std::size_t>(step - 1)].weights_hash);
      figures_.loss(claims, where, step, told.loss);
    }
  }

  const WrittenRun& run_;
  const nsa::TrainConfig& train_;
  Context& context_;
  WrittenSteps steps_;
  Figures figures_;
};

}  // namespace

void judge_files(const WrittenRun& run, Context& context) {
  if (run.finished()) FileJudge(run, context).run();  // judge_ends tells of the others
}

}  // namespace suites::training_cases
