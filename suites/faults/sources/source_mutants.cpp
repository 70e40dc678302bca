#include "suites/faults/sources/source_mutants.hpp"

#include <sys/resource.h>

#include <atomic>
#include <fstream>

#ifdef NSA_VALIDATE_SOURCE_MUTANTS
#include <fmt/ranges.h>

#include "suites/faults/sources/switch.hpp"
#include "suites/registry.hpp"
#endif

namespace suites {

#ifdef NSA_VALIDATE_SOURCE_MUTANTS

namespace {

struct SourceMutant {
  int number;
  const char* name;
  const char* what;
};

constexpr SourceMutant kSourceMutants[] = {
#include "source_mutants.inc"
};

// A mutant that allocates without end ends itself, and not the machine.
constexpr rlim_t kMostMemory = rlim_t{24} << 30;

std::string& marker() {
  static std::string file;
  return file;
}

// Called by what the mutant is in: it leaves a file, since the worker may not live to say it.
void leave_marker() {
  static std::atomic<bool> left{false};
  if (!left.exchange(true)) std::ofstream(marker()) << "reached\n";
}

void plant_source_mutant(int number, const harness::FaultSite& site) {
  marker() = (site.run_folder / kReachedFile).string();
  const rlimit most{kMostMemory, kMostMemory};
  (void)setrlimit(RLIMIT_DATA, &most);
  nsa::mutant::reached = leave_marker;
  nsa::mutant::planted = number;
}

}  // namespace

std::vector<Planted> source_mutants(const std::shared_ptr<Seams>& seams) {
  std::vector<std::string> names;
  for (const harness::Suite& suite : all_suites(Subject(seams))) names.push_back(suite.name);
  const std::string every_suite = fmt::format("{}", fmt::join(names, ","));
  std::vector<Planted> all;
  for (const SourceMutant& mutant : kSourceMutants) {
    Planted row{{mutant.name,
                 mutant.what,
                 {},
                 [number = mutant.number](const harness::FaultSite& site) { plant_source_mutant(number, site); }},
                "sources",
                every_suite};
    row.any_code = true;
    all.push_back(std::move(row));
  }
  return all;
}

std::size_t count_of_source_mutants() { return std::size(kSourceMutants); }

#else

std::vector<Planted> source_mutants(const std::shared_ptr<Seams>&) { return {}; }
std::size_t count_of_source_mutants() { return 0; }

#endif

}  // namespace suites
