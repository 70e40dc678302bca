#include "suites/records.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "suites/codes.hpp"
#include "suites/probes/autograd_errors.hpp"

namespace suites {

namespace {

void tell_fallbacks(harness::Context& context, const std::vector<std::shared_ptr<nsa::Dispatcher>>& dispatchers) {
  std::map<std::string, nsa::Fallbacks> all;
  for (const auto& dispatcher : dispatchers) {
    for (const auto& [op, record] : dispatcher->strict_fallbacks()) {
      if (record.replaced == 0) continue;  // a case may hand in what is not finite
      const auto [place, fresh] = all.try_emplace(op, record);
      if (!fresh) place->second.replaced += record.replaced;
    }
  }
  for (const auto& [op, record] : all)
    context.finding(codes::kStrictFallback,
                    fmt::format("{} gave {} at [{}] of its output [{}], and the reference's was taken instead, {} "
                                "time(s) in this case",
                                op, record.first.value, fmt::join(record.first.index, ", "),
                                fmt::join(record.first.shape, ", "), record.replaced),
                    {{"op", op},
                     {"times", record.replaced},
                     {"shape", record.first.shape},
                     {"index", record.first.index},
                     {"value", reports::number(record.first.value)}});
}

void tell(harness::Context& context, const std::vector<std::shared_ptr<nsa::Dispatcher>>& dispatchers) {
  std::map<std::pair<nsa::Op, nsa::Choice>, std::int64_t> calls;
  for (const auto& dispatcher : dispatchers)
    for (const nsa::Taken& taken : dispatcher->routes_taken()) calls[{taken.op, taken.choice}] += taken.calls;
  std::vector<nsa::Taken> routes;
  for (const auto& [route, times] : calls) routes.push_back({route.first, route.second, times});
  if (!routes.empty()) context.fact("routes", routes);
  tell_fallbacks(context, dispatchers);
}

}  // namespace

harness::Suite recorded(harness::Suite suite, const Subject& subject) {
  suite.cases = [cases = std::move(suite.cases), subject](const harness::Settings& settings) {
    std::vector<harness::Case> all = cases(settings);
    for (harness::Case& c : all)
      c.run = [run = std::move(c.run), subject](harness::Context& context) {
        (void)subject.take_dispatchers();  // of a case before, which nobody asked
        try {
          run(context);
        } catch (const c10::Error& error) {
          tell(context, subject.take_dispatchers());
          (void)probes::report_inplace_write(context, error);  // throws on what is about something else
          return;
        } catch (...) {
          tell(context, subject.take_dispatchers());
          throw;
        }
        tell(context, subject.take_dispatchers());
      };
    return all;
  };
  return suite;
}

}  // namespace suites
