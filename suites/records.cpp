#include "suites/records.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <map>
#include <tuple>

#include "base/text.hpp"
#include "harness/worker.hpp"
#include "suites/codes.hpp"
#include "suites/implementation/error.hpp"
#include "suites/judged.hpp"
#include "suites/locations.hpp"
#include "suites/probes/autograd_errors.hpp"
#include "suites/with_repro.hpp"

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
  std::map<std::tuple<nsa::Op, nsa::Choice, std::vector<nsa::Launched>>, std::int64_t> calls;
  for (const auto& dispatcher : dispatchers)
    for (const nsa::Taken& taken : dispatcher->routes_taken())
      calls[{taken.op, taken.choice, taken.kernels}] += taken.calls;
  nsa::PartRecord parts;
  for (const auto& dispatcher : dispatchers)
    for (const nsa::PartTaken& taken : dispatcher->parts()->taken()) parts.add(taken);
  std::vector<nsa::Taken> routes;
  for (const auto& [route, times] : calls) {
    const auto& [op, choice, kernels] = route;
    routes.push_back({op, choice, times, kernels});
  }
  harness::Json rows = routes;
  for (const nsa::PartTaken& part : parts.taken()) rows.push_back(part);
  if (!rows.empty()) context.fact("routes", rows);
  tell_fallbacks(context, dispatchers);
}

// What an implementation did wrong, with its own words; a call that it does not serve is nobody's fault.
void tell_implementation(harness::Context& context, const implementation::ImplementationError& error) {
  if (error.kind == "unsupported") context.skip("not_applicable", error.message);
  const auto& [code, what] = [&]() -> std::pair<std::string_view, std::string> {
    if (error.process_is_gone()) return {codes::kImplementationDied, "ends or stops answering"};
    if (error.kind == "shape" || error.kind == "dtype" || error.kind == "device")
      return {codes::kImplementationForm, "returns something of another form"};
    if (error.kind == "changed_inputs") return {codes::kImplementationWrites, "writes to what it is given"};
    if (error.kind == "description") return {codes::kImplementationDescribes, "is not what it said that it is"};
    return {codes::kImplementationRaised, "raises an error"};
  }();
  const std::string first = base::first_line(error.message);
  context.finding(code, fmt::format("the implementation {}: {}", what, error.message),
                  {{"kind", error.kind},
                   {"said", first},
                   {"traceback", error.traceback},
                   {"output", error.output},
                   {"adapter", context.settings().text("implementation")}});
}

// While a case runs: the implementation that its settings name is judged, and waiting for it is no hang of ours.
class Judging {
 public:
  Judging(harness::Context& context, const Subject& subject) {
    if (!judges_implementation(context.settings())) return;
    if (!subject.implementation()) judge(subject, context);
    client_ = subject.implementation();
    client_->on_wait([&context] { context.progress(); });
    client_->on_ask([](const std::string& what, pid_t process) {
      constexpr std::string_view kAsked = "{} of the implementation, whose process {} was alive";
      harness::waits_for(what.empty() ? "" : fmt::format(kAsked, what, process));
    });
    client_->forget();  // the calls of another case
    before_ = calls();
  }
  ~Judging() {
    if (!client_) return;
    client_->on_wait({});
    client_->on_ask({});
    client_->forget();
  }
  Judging(const Judging&) = delete;
  Judging& operator=(const Judging&) = delete;

  [[nodiscard]] const std::shared_ptr<implementation::Client>& client() const { return client_; }  // null: ours
  // Once for each worker: the report shows what it said when the run was planned, and what it says here is judged.
  void compare_description(harness::Context& context) const {
    if (!client_ || !client_->described().is_null()) return;
    (void)client_->describe();
    const harness::Json planned =
        context.planned_provenance().value(harness::Json::json_pointer("/implementation/claims"), harness::Json());
    if (planned.is_null()) return;
    const harness::Json differ = implementation::differences(planned, client_->described());
    if (!differ.empty())
      context.finding(codes::kImplementationDescribes,
                      fmt::format("the implementation describes itself otherwise in another process: {}",
                                  implementation::words_of(differ)),
                      {{"kind", "description"}, {"differ", differ}});
  }
  // Another call than it claims, or a part of it: our own functions served the case, and say nothing of it.
  [[nodiscard]] bool reached_nobody() const { return client_ && calls() == before_; }

 private:
  // What its process has started does not outlive this one either.
  static void judge(const Subject& subject, const harness::Context& context) {
    subject.judge(implementation_of(context.settings()));
    harness::at_worker_end([client = std::weak_ptr(subject.implementation())] {
      if (const auto alive = client.lock()) alive->end();
    });
  }
  [[nodiscard]] std::int64_t calls() const {
    std::int64_t all = 0;
    for (const auto& [function, times] : client_->calls()) all += times;
    return all;
  }

  std::shared_ptr<implementation::Client> client_;
  std::int64_t before_ = 0;
};

}  // namespace

harness::Suite recorded(harness::Suite suite, const Subject& subject) {
  suite.cases = [cases = std::move(suite.cases), subject, name = suite.name, judges = suite.judges_implementation,
                 guards = suite.guards](const harness::Settings& settings) {
    // The others would judge our own functions, and an implementation by its absence.
    if (judges_implementation(settings) && !judges && !guards) return std::vector<harness::Case>{};
    std::vector<harness::Case> all = cases(settings);
    for (harness::Case& c : all)
      c.run = [run = std::move(c.run), subject, judges, id = harness::case_id(name, c)](harness::Context& outer) {
        (void)subject.take_dispatchers();  // of a case before, which nobody asked
        const Judging judging(outer, subject);
        ContextWithRepro context(outer, judging.client(), id);
        try {
          if (judges) judging.compare_description(context);
          run(context);
        } catch (const implementation::ImplementationError& error) {
          tell(context, subject.take_dispatchers());
          tell_implementation(context, error);
          return;
        } catch (const c10::Error& error) {
          tell(context, subject.take_dispatchers());
          (void)probes::report_inplace_write(context, error);  // throws on what is about something else
          return;
        } catch (...) {
          tell(context, subject.take_dispatchers());
          throw;
        }
        tell(context, subject.take_dispatchers());
        if (judges && judging.reached_nobody())
          context.skip("not_applicable", "no call of this case is one that the implementation serves");
      };
    return all;
  };
  return suite;
}

}  // namespace suites
