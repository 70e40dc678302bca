// junit.xml for CI servers, by the strictest of their schemas (Jenkins' junit-10): properties stand in a test suite and
// never in a test case, whose facts are lines of its system-out; the root counts no skipped ones; times are plain
// decimals. It has three outcomes where a run has many; the rule is that the file is red (a failure or an error
// somewhere) exactly when the verdict is not READY.
#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "reports/view.hpp"
#include "reports/writers.hpp"

namespace reports {

namespace {

// XML 1.0 text: the five entities, and U+FFFD for control characters, which it cannot hold even escaped.
std::string xml(const std::string& text) {
  const std::string valid = view::utf8(text);
  std::string out;
  for (std::size_t i = 0; i < valid.size(); ++i) {
    const char c = valid[i];
    const bool control = static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\r' && c != '\t';
    if (control) {
      out += "\uFFFD";
    } else if (valid.compare(i, 3, "\uFFFE") == 0 || valid.compare(i, 3, "\uFFFF") == 0) {
      out += "\uFFFD";
      i += 2;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&apos;";
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += fmt::format("&#{};", static_cast<int>(c));  // would become spaces in an attribute
    } else {
      out += c;
    }
  }
  return out;
}

enum class Element { none, failure, error, skipped };

Element element_of(Status status) {
  switch (status) {
    case Status::pass:
      return Element::none;
    case Status::fail:
      return Element::failure;
    case Status::inconclusive:
    case Status::error:
    case Status::crash:
    case Status::hang:
    case Status::blocked:
    case Status::infra_error:
    case Status::not_run:
    case Status::cancelled:
      return Element::error;
    case Status::skip:
      return Element::skipped;
  }
  return Element::error;
}

std::string describe(const Finding& f) {
  std::string text = fmt::format("{} {}: {}\n{}\n", to_string(f.severity), f.code, f.title, f.message);
  for (const auto& [label, part] :
       {std::pair{"cause", f.cause}, {"next", f.next}, {"repro", f.repro}, {"python", view::python_command(f)}}) {
    if (!part.empty()) text += fmt::format("  {}: {}\n", label, part);
  }
  return text;
}

std::string describe(const std::vector<Finding>& findings) {
  std::string text;
  for (const auto& f : findings) text += describe(f);
  return text;
}

// The schema knows no sign, no NaN and no exponent.
std::string seconds(double s) { return fmt::format("{:.3f}", std::isfinite(s) && s > 0 ? s : 0.0); }

std::string property(const std::string& name, const std::string& value) {
  return fmt::format("      <property name=\"{}\" value=\"{}\"/>\n", xml(name), xml(value));
}

std::string result_element(const Case& c, Status status) {
  const std::string type(to_string(status)), message = view::why(c);
  const std::string details =
      describe(c.findings) + (c.repro.empty() || !c.findings.empty() ? "" : "repro: " + c.repro + "\n");
  switch (element_of(status)) {
    case Element::none:
      return {};
    case Element::skipped:
      return fmt::format("      <skipped message=\"{}\"/>\n", xml(message));
    case Element::failure:
      return fmt::format("      <failure type=\"{}\" message=\"{}\">{}</failure>\n", type, xml(message), xml(details));
    case Element::error:
      return fmt::format("      <error type=\"{}\" message=\"{}\">{}</error>\n", type, xml(message), xml(details));
  }
  return {};
}

std::string testcase(const Case& c) {
  const Status status = outcome(c);
  const std::string prefix = c.suite + "/";
  const std::string name = c.id.compare(0, prefix.size(), prefix) == 0 ? c.id.substr(prefix.size()) : c.id;
  std::string out = describe(c.findings);
  out += fmt::format("hash: {}\nstatus: {}\nseed: {}\n", c.hash, to_string(status), c.seed);
  for (const auto& m : c.metrics) out += fmt::format("{}: {}\n", m.name, view::measure(m.value, m.unit));
  const std::string body = result_element(c, status) + fmt::format("      <system-out>{}</system-out>\n", xml(out));
  return fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{}\">\n{}    </testcase>\n", xml(c.suite),
                     xml(name), seconds(c.duration_s), body);
}

struct Counts {
  int tests = 0, failures = 0, errors = 0, skipped = 0;
  void add(Status status) {
    ++tests;
    const Element element = element_of(status);
    failures += element == Element::failure ? 1 : 0;
    errors += element == Element::error ? 1 : 0;
    skipped += element == Element::skipped ? 1 : 0;
  }
  [[nodiscard]] std::string of_all() const {
    return fmt::format("tests=\"{}\" failures=\"{}\" errors=\"{}\"", tests, failures, errors);
  }
  [[nodiscard]] std::string of_suite() const { return fmt::format("{} skipped=\"{}\"", of_all(), skipped); }
};

std::string testsuite(const Run& run, const Suite& suite, Counts& all) {
  Counts counts;
  std::string body;
  for (const auto& c : suite.cases) {
    counts.add(outcome(c));
    all.add(outcome(c));
    body += testcase(c);
  }
  std::string required;
  for (const auto& name : suite.requires_suites) required += (required.empty() ? "" : ",") + name;
  const std::string properties = "    <properties>\n" + property("purpose", suite.purpose) +
                                 property("requires", required) +
                                 property("outcome", std::string(to_string(outcome(suite)))) + "    </properties>\n";
  return fmt::format("  <testsuite name=\"{}\" {} time=\"{}\" timestamp=\"{}\">\n{}{}  </testsuite>\n", xml(suite.name),
                     counts.of_suite(), seconds(suite.duration_s), xml(run.started), properties, body);
}

// The run itself as a test: red when the verdict is not READY, whatever the cases look like on their own (a required
// case skipped, a finding of the whole run, an incomplete journal).
std::string run_suite(const Run& run, const Assessment& assessment, Counts& all) {
  Counts counts;
  const Status status = assessment.verdict == Verdict::ready ? Status::pass : Status::fail;
  counts.add(status);
  all.add(status);
  std::string body;
  if (status == Status::fail) {
    std::string reasons;
    for (const auto& cause : run.causes)
      reasons +=
          fmt::format("{}: {}\n", &cause == &run.causes.front() ? "most likely" : "besides", view::sentence(cause));
    for (const auto& reason : assessment.reasons) reasons += reason + "\n";
    body = fmt::format("      <failure type=\"{}\" message=\"{}\">{}</failure>\n", to_string(assessment.verdict),
                       xml(assessment.scope), xml(reasons));
  }
  if (!run.findings.empty()) body += fmt::format("      <system-out>{}</system-out>\n", xml(describe(run.findings)));
  const std::string properties =
      "    <properties>\n" + property("run", run.id) + property("level", run.level) + property("device", run.device) +
      property("master_seed", std::to_string(run.master_seed)) + property("faults", view::planted_faults(run)) +
      property("complete", run.complete ? "true" : "false") + "    </properties>\n";
  return fmt::format(
      "  <testsuite name=\"run\" {} time=\"0.000\" timestamp=\"{}\">\n{}    <testcase classname=\"run\" "
      "name=\"verdict\" "
      "time=\"0.000\">\n{}    </testcase>\n  </testsuite>\n",
      counts.of_suite(), xml(run.started), properties, body);
}

}  // namespace

std::string to_junit(const Run& run) {
  Counts all;
  std::string body;
  for (const auto& suite : run.suites) body += testsuite(run, suite, all);
  body += run_suite(run, assess(run), all);
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"nsa-validate\" {} "
      "time=\"{}\">\n{}</testsuites>\n",
      all.of_all(), seconds(run.duration_s), body);
}

}  // namespace reports
