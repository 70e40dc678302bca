// The verb `doctor`: for people who set up a machine, before anything is run. What the harness can judge by itself
// stands here (workers, the place for reports); the rest is the program's (Program::diagnose).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/stamp.hpp"
#include "base/streams.hpp"
#include "harness/probe.hpp"
#include "harness/provenance.hpp"
#include "harness/run.hpp"
#include "harness/run_folder.hpp"
#include "harness/verbs.hpp"

namespace harness {

namespace fs = std::filesystem;

namespace {

using Row = Diagnosis::Row;
using State = Diagnosis::State;

constexpr std::uintmax_t kNeededBytes = 100 << 20;

Row good(std::string what) { return {State::good, "", std::move(what)}; }
Row note(std::string what, std::string next = "") { return {State::note, "", std::move(what), std::move(next)}; }
Row problem(std::string what, std::string next) { return {State::problem, "", std::move(what), std::move(next)}; }

void check_workers(std::vector<Row>& rows, bool gpu_needed, const DeviceProbe& probe) {
  const bool started = probe.provenance.is_object() && !probe.provenance.empty();
  if (!started)
    rows.push_back(problem("workers do not start: " + probe.why_not,
                           "read the reason: a library that is missing is brought back by the launcher, which sets up "
                           "what the program needs"));
  else
    rows.push_back(good("workers start"));
  if (probe.cuda_usable)
    rows.push_back(good("a GPU works"));
  else if (gpu_needed)
    rows.push_back(problem("no usable GPU: " + probe.why_not, "take a machine with a GPU, or run with --device cpu"));
  else if (started)
    rows.push_back(note("no usable GPU, runs use the CPU: " + probe.why_not));
}

void check_output(std::vector<Row>& rows, const CommandLine& line) {
  try {
    const fs::path folder = RunFolder(line.out, base::new_run_id(), line.force).path();
    fs::path existing = folder;
    while (!fs::exists(existing)) existing = existing.parent_path();
    const auto space = fs::space(existing);
    const std::string what = fmt::format("runs can be written to {}: {:.1f} GiB free", folder.parent_path().string(),
                                         static_cast<double>(space.available) / (1 << 30));
    if (space.available < kNeededBytes)
      rows.push_back(
          problem(what, fmt::format("free {} MiB there, or choose another folder with --out", kNeededBytes >> 20)));
    else
      rows.push_back(good(what));
  } catch (const std::runtime_error& error) {  // UsageError, InfrastructureError
    rows.push_back(problem(error.what(), "choose another folder with --out"));
  }
}

void print_rows(const std::vector<Row>& rows, const CodeTable& codes) {
  for (const Row& row : rows) {
    const char* word = row.state == State::good ? "ok" : row.state == State::note ? "note" : "PROBLEM";
    const Code* code = row.code.empty() ? nullptr : codes.find(row.code);
    base::out("{:8} {}{}{}\n", word, row.code, row.code.empty() ? "" : ": ", row.what);
    const std::string next = !row.next.empty() ? row.next : code != nullptr ? std::string(code->next) : "";
    if (row.state != State::good && !next.empty()) base::out("         -> {}\n", next);
  }
}

void print_table(const Diagnosis::Table& table) {
  base::out("\n{}\n", table.title);
  std::vector<std::size_t> widths;
  for (const auto& row : table.rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : table.rows) {
    std::string text = " ";
    for (std::size_t i = 0; i < row.size(); ++i)
      text += i + 1 == row.size() ? " " + row[i] : fmt::format(" {:{}} ", row[i], widths[i]);
    base::out("{}\n", text);
  }
}

void flatten(const std::string& key, const Json& value, Diagnosis::Table& table) {
  if (value.is_object()) {
    for (const auto& [name, child] : value.items())
      flatten(key.empty() ? name : fmt::format("{}.{}", key, name), child, table);
  } else {
    table.rows.push_back({key, value.is_string() ? value.get<std::string>() : reports::dump(value)});
  }
}

// The last line, and the exit code: everything that is wrong, by name.
reports::ExitCode conclude(const std::vector<Row>& rows, bool configuration_works) {
  std::vector<std::string> names;
  for (const Row& row : rows) {
    const std::string name = row.code.empty() ? row.what.substr(0, row.what.find(':')) : row.code;
    if (row.state == State::problem && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  }
  const auto count = std::count_if(rows.begin(), rows.end(), [](const Row& r) { return r.state == State::problem; });
  if (count == 0) {
    base::out("\ndoctor: nothing is wrong\n");
    return reports::ExitCode::ready;
  }
  base::out("\ndoctor: {} problem(s): {}\n", count, fmt::join(names, ", "));
  return configuration_works ? reports::ExitCode::infrastructure : reports::ExitCode::usage;
}

}  // namespace

reports::ExitCode doctor(const Program& program, const CommandLine& line) {
  Settings settings = make_settings(program, line);
  const DeviceProbe probe = probe_in_worker(settings.real("run.start_s"), program.worker);
  const bool needs_gpu = line.require_cuda || settings.text("run.device") == "cuda";
  if (settings.text("run.device") == "auto")
    settings.set("run.device", probe.cuda_usable ? "cuda" : "cpu", "the machine");

  std::vector<Row> rows;
  Program known = program;
  bool configuration_works = true;
  try {
    if (program.validate) program.validate(settings);
    rows.push_back(good("configuration and flags make sense"));
  } catch (const UsageError& error) {
    rows.push_back(problem(error.what(), "mend what the message names; every run would be refused"));
    configuration_works = false;
    known.provenance = nullptr;  // it could not be told either
  }
  Json found = provenance(known, settings, line);
  found.erase("settings");  // --show-config prints them
  if (probe.provenance.is_object()) found.update(probe.provenance);
  check_workers(rows, needs_gpu, probe);
  check_output(rows, line);

  std::vector<Diagnosis::Table> tables;
  if (program.diagnose) {
    Diagnosis own = program.diagnose(settings, found, probe);
    rows.insert(rows.end(), own.rows.begin(), own.rows.end());
    tables = std::move(own.tables);
  }
  Diagnosis::Table all{"Everything that a run would record", {}};
  for (const char* shown_elsewhere : {"flags", "config"})
    if (program.diagnose) found.erase(shown_elsewhere);
  flatten("", found, all);
  tables.push_back(std::move(all));

  print_rows(rows, CodeTable(program.codes));
  for (const Diagnosis::Table& table : tables) print_table(table);
  return conclude(rows, configuration_works);
}

}  // namespace harness
