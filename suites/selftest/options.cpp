#include "suites/selftest/options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/fnv1a.hpp"
#include "base/nearest.hpp"
#include "harness/settings.hpp"

namespace suites::selftest {

namespace {

std::vector<std::string> groups_of(std::span<const Planted> faults) {
  std::vector<std::string> names;
  for (const Planted& fault : faults)
    if (std::find(names.begin(), names.end(), fault.group) == names.end()) names.push_back(fault.group);
  return names;
}

void refuse_unknown(const std::vector<std::string>& asked, const std::vector<std::string>& known, const char* what) {
  for (const std::string& name : asked) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string near = base::nearest(name, known);
    throw harness::UsageError(fmt::format("unknown {} '{}'{}; `selftest --list` lists them", what, name,
                                          near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
  }
}

// The same sample for the same seed, whatever the library.
std::uint64_t hash_of(const std::string& text) {
  const std::uint64_t hash = base::fnv1a(base::kFnvOffset, text);
  return hash ^ (hash >> 29);
}

}  // namespace

void add_options(CLI::App& app, Options& o) {
  app.add_option("--level", o.level, "level at which the suites run: smoke or standard (default smoke)")
      ->check(CLI::IsMember({"smoke", "standard"}));
  app.add_option("--device", o.device, "auto, cpu or cuda")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--group", o.groups, "faults of these groups only; repeatable")->allow_extra_args(false);
  app.add_option("--fault", o.faults, "these faults only; repeatable")->allow_extra_args(false);
  app.add_option("--sample", o.sample, "so many of them, chosen by --seed")->check(CLI::PositiveNumber);
  app.add_option("--seed", o.seed, "of --sample (default: the build id, so that other sources give another sample)");
  app.add_flag(
      "--whole", o.whole,
      "run the whole level for each fault, not the suites alone that are to find it; a mutant of the sources does not "
      "end at the first case that notices it");
  app.add_option("--clean", o.clean, "runs without a fault, for false alarms (default 1)");
  app.add_option("--jobs", o.jobs, "runs at once (default: the cores)")->check(CLI::PositiveNumber);
  app.add_option("--limit", o.limit_s, "seconds of one run, which is killed then (default 600)")
      ->check(CLI::PositiveNumber);
  app.add_option("--baseline", o.baseline, "score to compare with (fixtures/selftest/)");
  app.add_option("--equivalent", o.equivalent,
                 "mutants of the sources that change nothing, each with its reason (default "
                 "fixtures/selftest/equivalent.json)");
  app.add_option("--write-baseline", o.write_baseline,
                 "write the score here; of faults that are not tried the file keeps its rows");
  app.add_option("--out", o.out, "folder of the runs and of selftest.json: new or empty (default out/<run id>)");
  app.add_flag("--force", o.force, "remove what an earlier self-test left in --out");
  app.add_flag("--list", o.list, "list the faults with group and suites, and do nothing");
  app.add_flag("--quiet", o.quiet, "no progress");
}

std::vector<std::string> names_of(std::span<const Planted> faults) {
  std::vector<std::string> names;
  for (const Planted& fault : faults) names.push_back(fault.name);
  return names;
}

std::vector<Planted> chosen(const std::vector<Planted>& catalogue, const Options& o, bool cuda) {
  refuse_unknown(o.groups, groups_of(catalogue), "group");
  refuse_unknown(o.faults, names_of(catalogue), "fault");
  const auto among = [](const std::vector<std::string>& all, const std::string& one) {
    return all.empty() || std::find(all.begin(), all.end(), one) != all.end();
  };
  std::vector<Planted> faults;
  std::copy_if(catalogue.begin(), catalogue.end(), std::back_inserter(faults),
               [&](const Planted& fault) { return among(o.groups, fault.group) && among(o.faults, fault.name); });
  if (o.sample == 0) return faults;
  std::erase_if(faults, [&](const Planted& fault) { return fault.needs_gpu && !cuda; });  // would be spent on nothing
  std::stable_sort(faults.begin(), faults.end(), [&](const Planted& a, const Planted& b) {
    return hash_of(o.seed + "/" + a.name) < hash_of(o.seed + "/" + b.name);
  });
  if (faults.size() > o.sample) faults.resize(o.sample);
  return faults;
}

}  // namespace suites::selftest
