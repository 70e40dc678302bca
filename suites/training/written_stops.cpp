// What a run of nsa-train leaves when it is stopped, has diverged, or finds a broken checkpoint.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/linear.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <set>

#include "nsa/train/hash.hpp"
#include "nsa/train/run/exit_code.hpp"
#include "suites/codes.hpp"
#include "suites/training/made_text.hpp"
#include "suites/training/told_files.hpp"
#include "suites/training/written_down.hpp"

namespace suites::training_cases {

namespace {

namespace fs = std::filesystem;
using harness::Context;

// Does something while batch `number`, from 1, is asked for.
class Halting : public nsa::train::BatchStream {
 public:
  Halting(std::shared_ptr<nsa::train::BatchStream> source, int number, std::function<void()> then)
      : source_(std::move(source)), left_(number), then_(std::move(then)) {}
  nsa::train::Batch next() override {
    if (--left_ == 0) then_();
    return source_->next();
  }
  [[nodiscard]] nlohmann::json position() const override { return source_->position(); }
  void seek(const nlohmann::json& position) override { source_->seek(position); }

 private:
  std::shared_ptr<nsa::train::BatchStream> source_;
  int left_;
  std::function<void()> then_;
};

// How somebody asks a run that trains to stop, and how it must end.
struct Ask {
  std::string what;
  std::function<void(const fs::path& folder)> ask;
  int exit_code;
};

void flip_a_bit(const fs::path& file) {
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
  stream.seekg(middle);
  const int byte = stream.get();
  stream.seekp(middle);
  stream.put(static_cast<char>(byte ^ 1));
  if (!stream.flush()) throw std::runtime_error("written_down: cannot change " + file.string());
}

// Asked while step 5 reads its first batch: the run stops before step 6 and leaves what it has learnt. Checkpoints are
// due every second step, and two of them stay.
void judge_stop_by(const Ask& ask, const WrittenTrial& trial, Context& context) {
  context.phase(ask.what + " between two checkpoints");
  WrittenTrial stopped = trial;
  stopped.folder = trial.folder.parent_path() / "stopped";
  fs::remove_all(stopped.folder);
  for (auto& [key, value] : stopped.settings) {
    if (key == "train.save_every" || key == "train.keep_checkpoints") value = "2";
    if (key == "train.prefetch_batches") value = "0";  // a batch is read in the step that takes it
  }
  stopped.cut = kWrittenSteps;
  RunWitness witness([&](std::shared_ptr<nsa::train::BatchStream> source, nsa::train::Split of,
                         int) -> std::shared_ptr<nsa::train::BatchStream> {
    if (of != nsa::train::Split::train) return source;
    return std::make_shared<Halting>(std::move(source), 9, [ask = ask.ask, folder = stopped.folder] { ask(folder); });
  });
  const int code = run_nsa_train(arguments_of(stopped, false), witness.next_start()).exit_code;
  const auto made = static_cast<std::int64_t>(witness.steps().size());
  const bool halted = code == ask.exit_code;
  context.expect(ask.what + " stops a run that trains", halted,
                 fmt::format("nsa-train ended with {} after {} steps instead of with {}, though {} came in step 5",
                             code, made, ask.exit_code, ask.what),
                 codes::kGuardMissed,
                 {{"guard", ask.what + " of a run that trains"}, {"steps", made}, {"exit_code", code}});
  if (!halted) return;
  std::set<std::string> kept;
  for (const auto& file : fs::directory_iterator(stopped.folder / "checkpoints")) kept.insert(file.path().filename());
  const auto name = [](std::int64_t step) { return fmt::format("step_{:08}.safetensors", step); };
  context.expect(
      fmt::format("a run that is asked to stop by {} saves its last step", ask.what), kept.contains(name(made)),
      fmt::format("nsa-train was stopped after {} steps by {}, and of the last one there is no checkpoint", made,
                  ask.what),
      codes::kGuardMissed,
      {{"promise", fmt::format("a run that is asked to stop by {} saves its last step", ask.what)}, {"steps", made}});
  if (!kept.contains(name(made))) return;
  const std::set<std::string> wanted = {name(made % 2 == 0 ? made - 2 : made - 1), name(made)};
  context.expect(
      "as many checkpoints stay as are asked for", kept == wanted,
      fmt::format("train.keep_checkpoints = 2 left {} and should leave {}", fmt::join(kept, ", "),
                  fmt::join(wanted, ", ")),
      codes::kGuardMissed,
      {{"guard", "train.keep_checkpoints (the newest stay, and so many of them)"}, {"kept", kept}, {"wanted", wanted}});
}

}  // namespace

void judge_stop(const WrittenTrial& trial, Context& context) {
  // No UTF-8: an operator may write anything.
  judge_stop_by({"a .HALT", [](const fs::path& folder) { write_text(folder / ".HALT", "\xe9t\xe9"); },
                 static_cast<int>(nsa::train::ExitCode::halted)},
                trial, context);
  judge_stop_by(
      {"SIGTERM", [](const fs::path&) { (void)::raise(SIGTERM); }, static_cast<int>(nsa::train::ExitCode::terminated)},
      trial, context);
}

void judge_divergence(const WrittenTrial& trial, Context& context) {
  context.phase("a run that diverges");
  WrittenTrial diverging = trial;
  diverging.folder = trial.folder.parent_path() / "diverged";
  diverging.device = at::kCPU;  // what is kept does not hang on it
  constexpr const char* kOther[][2] = {{"train.precision", "fp32"},
                                       {"train.lr", "1"},
                                       {"train.steps", "60"},
                                       {"train.save_every", "3"},
                                       {"train.keep_checkpoints", "2"}};
  for (auto& [key, value] : diverging.settings)
    for (const auto& [other, wanted] : kOther)
      if (key == other) value = wanted;
  diverging.settings.emplace_back("train.stop_on_divergence", "true");
  diverging.cut = 60;
  const int code = run_nsa_train(arguments_of(diverging, false), {}).exit_code;
  constexpr int kAnomaly = static_cast<int>(nsa::train::ExitCode::anomaly);
  context.expect("a run that diverges is stopped", code == kAnomaly,
                 fmt::format("nsa-train with train.lr = 1 ended with {} instead of {}", code, kAnomaly),
                 codes::kGuardMissed, {{"guard", "divergence of a run"}, {"exit_code", code}});
  if (code != kAnomaly) return;
  std::set<std::string> kept;
  for (const auto& file : fs::directory_iterator(diverging.folder / "checkpoints")) kept.insert(file.path().filename());
  context.expect("a run that has diverged removes no checkpoint", kept.size() == 3,
                 fmt::format("two checkpoints were kept while the run went on, and the one of its stop makes three; "
                             "there are {}",
                             fmt::join(kept, ", ")),
                 codes::kGuardMissed,
                 {{"promise", "the checkpoint of a run that has diverged removes no older one"}, {"kept", kept}});
}

void judge_rows(const fs::path& table, const std::vector<std::int64_t>& steps, Context& context) {
  const std::string name = table.filename();
  std::vector<std::int64_t> told;
  std::string unreadable;
  try {
    for (const ToldRow& row : told_table(table)) told.push_back(row.step);
  } catch (const Unreadable& error) {
    unreadable = error.what();
  }
  context.expect(name + " has every step once", unreadable.empty() && told == steps,
                 unreadable.empty() ? fmt::format("{} has the steps {} after a resume; wanted are {}", name,
                                                  fmt::join(told, ", "), fmt::join(steps, ", "))
                                    : unreadable,
                 codes::kGuardMissed,
                 {{"promise", fmt::format("a resume cuts {} back to its checkpoint", name)}, {"steps", told}});
}

void judge_refusals(const WrittenTrial& trial, Context& context) {
  const fs::path halt = trial.folder / ".HALT";
  constexpr int kHalted = static_cast<int>(nsa::train::ExitCode::halted);
  for (const auto& [text, what] :
       {std::pair("", "an empty .HALT"), std::pair("\xe9t\xe9", "a .HALT that is no UTF-8")}) {
    context.phase(what);
    write_text(halt, text);
    const int stopped = run_nsa_train(arguments_of(trial, true), {}).exit_code;
    context.expect(fmt::format("{} stops nsa-train", what), stopped == kHalted,
                   fmt::format("with {} nsa-train --resume ended with {} instead of {}", what, stopped, kHalted),
                   codes::kGuardMissed,
                   {{"guard", fmt::format("{} in the run's folder", what)}, {"exit_code", stopped}});
    fs::remove(halt);
  }

  context.phase("a finished run");
  RunWitness witness;
  const int repeated = run_nsa_train(arguments_of(trial, true), witness.next_start()).exit_code;
  context.expect("a finished run has nothing left to do", repeated == 0 && witness.steps().empty(),
                 fmt::format("nsa-train --resume of a finished run ended with {} and made {} steps", repeated,
                             witness.steps().size()),
                 codes::kGuardMissed,
                 {{"guard", "a resume from the newest checkpoint"}, {"steps", witness.steps().size()}});

  context.phase("a damaged checkpoint");
  const fs::path newest = trial.folder / "checkpoints" / fmt::format("step_{:08}.safetensors", kWrittenSteps);
  flip_a_bit(newest);
  RunWitness again;
  const int resumed = run_nsa_train(arguments_of(trial, true), again.next_start()).exit_code;
  const bool aside = fs::exists(newest.string() + ".broken");
  context.expect("a checkpoint with a flipped bit is set aside", aside && resumed == 0,
                 fmt::format("nsa-train --resume ended with {}, and {} was {}", resumed, newest.filename().string(),
                             aside ? "set aside" : "taken for whole"),
                 codes::kGuardMissed, {{"guard", "checksum of a checkpoint"}, {"exit_code", resumed}});
  // Checkpoints are of the steps 3, 5 and 7.
  const std::size_t made = again.steps().size(), wanted = kWrittenSteps - 5;
  context.expect(
      "a resume goes on from the newest checkpoint that is whole", made == wanted,
      fmt::format("nsa-train --resume with checkpoints of steps 3, 5 and a broken one of step {} made {} "
                  "steps; {} were lost",
                  kWrittenSteps, made, wanted),
      codes::kGuardMissed,
      {{"promise", "a resume goes on from the newest whole checkpoint, past a broken one"}, {"steps", made}});
  judge_rows(trial.folder / "metrics.csv", {1, 2, 3, 4, 5, 6, 7}, context);
  judge_rows(trial.folder / "validation.csv", {2, 4, 6}, context);

  const at::NoGradGuard no_grad;
  torch::nn::Linear weights(7, 5);
  const std::string before = nsa::train::weights_hash(*weights);
  weights->weight[4][6] += 1;
  context.expect("the hash of the weights sees the last of them", before != nsa::train::weights_hash(*weights),
                 "two tensors that differ in their last number have the same hash", codes::kGuardMissed,
                 {{"guard", "hash of the weights"}});
}

}  // namespace suites::training_cases
