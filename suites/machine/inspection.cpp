#include "suites/machine/inspection.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace suites::machine {

bool Inspection::sound() const {
  return std::all_of(judgements.begin(), judgements.end(), [](const Judgement& j) { return j.holds; });
}

void tell(harness::Context& context, const Inspection& inspection) {
  context.fact(inspection.subject, inspection.seen);
  for (const Judgement& j : inspection.judgements) context.expect(j.name, j.holds, j.what_failed, j.code, j.evidence);
}

std::string in_words(double bytes) {
  constexpr double kMiB = 1 << 20, kGiB = 1 << 30;
  return bytes < kGiB ? fmt::format("{:.0f} MiB", bytes / kMiB) : fmt::format("{:.1f} GiB", bytes / kGiB);
}

}  // namespace suites::machine
