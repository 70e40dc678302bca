#include "harness/load_watch.hpp"

namespace harness {

using reports::Json;

namespace {

// Shorter phases are measured together with the next: they are too short for a figure.
constexpr std::chrono::duration<double> kShortest(base::LoadMeter::kShortest_s);

}  // namespace

LoadReader measure_load() {
  return [meter = base::LoadMeter()] { return meter.read(); };
}

Json to_json(const base::Load& load) {
  if (!load.known) return {{"known", false}, {"why_unknown", load.why_unknown}};
  Json json = {{"known", true},
               {"busy", load.busy()},
               {"in_words", load.describe()},
               {"seconds", reports::number(load.wall_s)},
               {"cores", load.cores},
               {"own_cores", reports::number(load.own_cores)},
               {"others_cores", reports::number(load.others_cores)},
               {"stolen_percent", reports::number(100 * load.steal_share)}};
  if (const auto share = load.waited_share()) json["waited_percent"] = reports::number(100 * *share);
  return json;
}

LoadWatch::LoadWatch(LoadSource source)
    : source_(std::move(source)), whole_(source_()), part_(whole_), part_begin_(Clock::now()) {}

void LoadWatch::phase() {
  if (!part_is_long_enough()) return;
  part_ = source_();
  part_begin_ = Clock::now();
}

base::Load LoadWatch::look() const {
  base::Load whole = whole_();
  if (whole.busy() || !part_is_long_enough()) return whole;
  const base::Load part = part_();
  return part.busy() ? part : whole;
}

bool LoadWatch::part_is_long_enough() const { return Clock::now() - part_begin_ >= kShortest; }

}  // namespace harness
