#include "harness/replay_sizes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/atomic_file.hpp"
#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/streams.hpp"
#include "harness/bundles.hpp"
#include "harness/journal_writer.hpp"
#include "harness/minimise.hpp"

namespace harness {

namespace fs = std::filesystem;
using reports::Bundle;

namespace {

constexpr int kMostTries = 400;

// Which settings the case obeys and how large they are. Those of other suites are none of its business.
class Sizes {
 public:
  Sizes(const Program& program, const Replay& replay, const Bundle& bundle);

  [[nodiscard]] const std::vector<Size>& start() const { return start_; }
  // What has to be run for these.
  [[nodiscard]] ReplayedCase with(const std::vector<Size>& sizes) const;
  // The case's parameter that a setting makes is one of its sizes; with this it is not.
  void without_parameter();
  [[nodiscard]] bool has_parameter() const { return !parameter_key_.empty(); }

 private:
  const Replay& replay_;
  std::vector<Size> start_;
  std::string parameter_key_, parameter_;  // "s_sweep.lengths", "S"
};

// The value of a parameter in "suite/name[A=x,B=y]", and its place; npos where it has none.
std::pair<std::size_t, std::size_t> place_of(const std::string& id, const std::string& parameter) {
  for (const char before : {'[', ','}) {
    const std::string wanted = before + parameter + "=";
    if (const std::size_t at = id.find(wanted); at != std::string::npos) {
      const std::size_t begin = at + wanted.size();
      return {begin, id.find_first_of(",]", begin) - begin};
    }
  }
  return {std::string::npos, 0};
}

std::vector<std::int64_t> integers_of(const std::string& text) try {
  const Json json = Json::parse(text);
  if (json.is_number_integer()) return {json.get<std::int64_t>()};
  return json.get<std::vector<std::int64_t>>();
} catch (const Json::exception&) {
  return {};
}

Sizes::Sizes(const Program& program, const Replay& replay, const Bundle& bundle) : replay_(replay) {
  for (const SizeSetting& size : program.sizes) {
    const std::string owner = size.key.substr(0, size.key.find('.'));
    const bool own = owner == bundle.suite;
    if (!own &&
        std::any_of(program.suites.begin(), program.suites.end(), [&](const Suite& s) { return s.name == owner; }))
      continue;
    const std::string text = replay.value_of(size.key);
    Size made{size.key, size.smallest, text.starts_with('['), integers_of(text)};
    const auto [begin, length] = place_of(bundle.case_id, size.parameter);
    if (own && !size.parameter.empty() && begin != std::string::npos) {
      made.list = true;
      made.value = integers_of(bundle.case_id.substr(begin, length));
      parameter_key_ = size.key;
      parameter_ = size.parameter;
    }
    if (!made.value.empty()) start_.push_back(std::move(made));
  }
}

void Sizes::without_parameter() {
  std::erase_if(start_, [&](const Size& size) { return size.key == parameter_key_; });
  parameter_key_.clear();
}

ReplayedCase Sizes::with(const std::vector<Size>& sizes) const {
  ReplayedCase what = replay_.as_it_was();
  for (const Size& size : sizes) {
    if (size.key == parameter_key_) {
      const auto [begin, length] = place_of(what.id, parameter_);
      what.id.replace(begin, length, std::to_string(size.value.at(0)));
    }
    if (to_string(size) != replay_.value_of(size.key)) what.settings.push_back({size.key, to_string(size), "--set"});
  }
  return what;
}

class Minimising {
 public:
  Minimising(const Bundle& bundle, const Replay& replay, Sizes sizes, ReplayPlaces places, Interrupts& interrupts)
      : bundle_(bundle),
        replay_(replay),
        sizes_(std::move(sizes)),
        places_(std::move(places)),
        interrupts_(interrupts) {}

  // Returns the signal that stopped it, 0 for none.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  Tried attempt(const std::vector<Size>& sizes, const std::string& change);
  [[nodiscard]] double elapsed() const { return base::seconds_since(begin_); }
  void print(const std::vector<Size>& best, bool cut_short) const;
  void write(const std::vector<Size>& best) const;
  [[nodiscard]] Json table(const std::vector<Size>& best) const;

  const Bundle& bundle_;
  const Replay& replay_;
  Sizes sizes_;
  ReplayPlaces places_;
  fs::path best_folder_;
  Interrupts& interrupts_;
  Clock::time_point begin_ = Clock::now();
  int tries_ = 0, signal_ = 0;
};

Tried Minimising::attempt(const std::vector<Size>& sizes, const std::string& change) {
  if (const auto arrived = interrupts_.arrived()) {
    signal_ = *arrived;
    return Tried::stop;
  }
  const double left = places_.limit_s - elapsed();
  if (left <= 0 || tries_ == kMostTries) {
    base::err("limit: {} tries in {:.0f} s; --limit gives more time\n", tries_, elapsed());
    return Tried::stop;
  }
  const ReplayedCase what = sizes_.with(sizes);
  if (!replay_.refused(what).empty()) return Tried::refused;
  ++tries_;
  const auto begin = Clock::now();
  const Replayed replayed = replay_.run(what, places_.folder / fmt::format("try-{}", tries_), left);
  if (replayed.outcome == Replayed::Outcome::stopped) {
    signal_ = replayed.exit_code;
    return Tried::stop;
  }
  const bool same = replayed.outcome == Replayed::Outcome::same;
  if (!places_.quiet)
    base::err("try {}: {}: {}{} ({:.1f} s)\n", tries_, change, to_string(replayed.outcome), same ? ", kept" : "",
              base::seconds_since(begin));
  const fs::path waste = same ? best_folder_ : replayed.folder;  // made by us just now
  if (same) best_folder_ = replayed.folder;
  if (!waste.empty()) {
    std::error_code ignored;
    fs::remove_all(waste, ignored);
    fs::remove(waste.string() + ".log", ignored);
  }
  if (same) return Tried::same;
  return replayed.outcome == Replayed::Outcome::refused ? Tried::refused : Tried::other;
}

Json Minimising::table(const std::vector<Size>& best) const {
  Json rows = Json::array();
  for (std::size_t i = 0; i < best.size(); ++i)
    if (const Size& before = sizes_.start().at(i); !(before == best[i]))
      rows.push_back({{"setting", best[i].key}, {"before", to_string(before)}, {"after", to_string(best[i])}});
  return rows;
}

void Minimising::print(const std::vector<Size>& best, bool cut_short) const {
  const Json rows = table(best);
  base::out("\n{:32} {:>12} {:>12}\n", "setting", "before", "after");
  for (const Json& row : rows)
    base::out("{:32} {:>12} {:>12}\n", row["setting"].get<std::string>(), row["before"].get<std::string>(),
              row["after"].get<std::string>());
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < best.size(); ++i)
    if (best[i] == sizes_.start()[i]) kept.push_back(fmt::format("{} {}", best[i].key, to_string(best[i])));
  if (!kept.empty())
    base::out("{}: {}\n", cut_short ? "not smaller so far, not all of it tried" : "not smaller", fmt::join(kept, ", "));
  base::out("{} tries, {:.0f} s\nsmaller: {}\n", tries_, elapsed(), replay_.command(sizes_.with(best)));
}

void Minimising::write(const std::vector<Size>& best) const {
  const std::string id = sizes_.with(best).id;
  const fs::path made = best_folder_ / reports::kBundleFolder / case_slug(id) / reports::kBundleFile;
  Json json = Json::parse(base::read_head(made, reports::kMostBundleBytes));
  json["minimised"] = {
      {"from", seal_of(bundle_.json)}, {"tries", tries_}, {"seconds", elapsed()}, {"sizes", table(best)}};
  const fs::path& file = places_.bundle;
  const fs::path target = (file.has_parent_path() ? file.parent_path() : fs::path(".")) / reports::kMinimisedFile;
  try {
    base::write_whole(target, sealed(std::move(json)), base::AtomicFile::Folder::own);
  } catch (const base::FileError& error) {
    throw InfrastructureError(fmt::format("{}: cannot be written: {}", target.string(), std::strerror(error.error())));
  }
  base::out("bundle:  {}\n", target.string());
}

int Minimising::run() {
  const auto attempt_one = [this](const std::vector<Size>& sizes, const std::string& change) {
    return attempt(sizes, change);
  };
  // The setting that makes the case, with this case alone: where that does not fail in the same way, it stays as it is.
  if (sizes_.has_parameter() && attempt(sizes_.start(), "the case alone") != Tried::same) sizes_.without_parameter();
  if (sizes_.start().empty()) {
    base::out("nothing that this case obeys is a size that can be made smaller\n");
    return signal_;
  }
  Minimiser minimiser(sizes_.start(), attempt_one);
  const std::vector<Size> best = minimiser.run();
  print(best, minimiser.stopped());
  if (minimiser.stopped())
    base::out("the search was cut short by {}: smaller sizes may fail in the same way\n",
              signal_ != 0 ? "a signal" : "its limit");
  if (best == sizes_.start())
    base::out("{}\n", minimiser.stopped() ? "nothing smaller was found so far"
                                          : "no size can be made smaller with the same failure");
  else
    write(best);
  return signal_;
}

}  // namespace

int minimise_replay(const Program& program, const Bundle& bundle, const Replay& replay, const ReplayPlaces& places,
                    Interrupts& interrupts) {
  return Minimising(bundle, replay, Sizes(program, replay, bundle), places, interrupts).run();
}

}  // namespace harness
