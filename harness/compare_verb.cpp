// `compare RUN RUN ...`: what is different between runs.
#include <fmt/format.h>

#include <set>

#include "base/streams.hpp"
#include "harness/verbs.hpp"
#include "reports/causes.hpp"
#include "reports/compare.hpp"
#include "reports/compare_trace.hpp"
#include "reports/read_run.hpp"

namespace harness {

namespace {

namespace fs = std::filesystem;

reports::NamedRun read(const Program& program, const std::string& path) {
  reports::NamedRun named{path, reports::read_run(path)};
  // Side by side they would look like runs without any case.
  if (const std::string other = other_program(program, named.run); !other.empty())
    throw UsageError(fmt::format("{}: {}", path, other));
  reports::find_causes(named.run, program.causes);
  return named;
}

void refuse_one_file_twice(const std::vector<std::string>& paths) {
  std::set<fs::path> seen;
  for (const std::string& path : paths) {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    if (!error && !seen.insert(real).second)
      throw UsageError(fmt::format("compare: {} is given twice; give different runs", path));
  }
}

// Each run against the one before it.
reports::ExitCode print_traces(const std::vector<reports::NamedRun>& runs) {
  std::string text;
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i - 1].run.id == runs[i].run.id)
      throw UsageError(fmt::format("{} and {} are the same run, {}; give two different ones", runs[i - 1].name,
                                   runs[i].name, runs[i].run.id));
    const auto cases = reports::compare_traces(runs[i - 1].run, runs[i].run);
    if (cases.empty())
      throw UsageError(
          fmt::format("compare: no case has a trace in both {} and {}; `list --settings` says which setting "
                      "records one",
                      runs[i - 1].name, runs[i].name));
    if (runs.size() > 2) text += fmt::format("{} -> {}\n", i, i + 1);
    text += reports::to_text(cases);
  }
  base::out("{}", text);
  return reports::ExitCode::ready;
}

}  // namespace

std::string other_program(const Program& program, const reports::Run& run) {
  const auto it = run.provenance.find("program");
  if (it == run.provenance.end() || !it->is_object() || !it->contains("name")) return "";  // of an early version
  if (it->at("name") == program.name) return "";
  return fmt::format("is a run of {}, not of {}", reports::dump(it->at("name")), program.name);
}

reports::ExitCode compare(const Program& program, const CommandLine& line) {
  if (line.summary_file) throw UsageError("option '--summary-file' has no meaning for the verb 'compare'");
  if (line.operands.size() < 2)
    throw UsageError(fmt::format("compare: {}: one run only; give two or more", line.operands.front()));
  if (line.trace && line.json) throw UsageError("compare: --trace has no JSON");
  refuse_one_file_twice(line.operands);
  std::vector<reports::NamedRun> runs;
  runs.reserve(line.operands.size());
  for (const std::string& path : line.operands) runs.push_back(read(program, path));
  try {
    if (line.trace) return print_traces(runs);
    const reports::Comparison comparison = reports::compare(runs);
    if (line.json) {
      base::out("{}\n", reports::dump(reports::to_json(comparison), 2));
    } else {
      const std::string text = reports::to_text(comparison);
      base::out("{}", line.quiet ? base::last_line(text) : text);
    }
  } catch (const std::invalid_argument& error) {
    throw UsageError(fmt::format("compare: {}", error.what()));
  }
  return reports::ExitCode::ready;
}

}  // namespace harness
