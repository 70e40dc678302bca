#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "suites/scenario/reader.hpp"

namespace suites::scenario {

namespace {

using Texts = std::vector<std::string>;
using Kind = Look::Kind;

struct Context {
  const Known& known;
  Texts attempts;  // so far: names
};

constexpr const char* kNameLetters = "abcdefghijklmnopqrstuvwxyz0123456789-";
const std::vector<std::pair<const char*, Kind>>& kinds() {
  static const std::vector<std::pair<const char*, Kind>> all = {
      {"finding", Kind::finding},       {"clean", Kind::clean},     {"outcome", Kind::outcome},
      {"metric", Kind::metric},         {"told", Kind::told},       {"record", Kind::record},
      {"not_tested", Kind::not_tested}, {"verdict", Kind::verdict}, {"compared", Kind::compared},
      {"went_in", Kind::went_in}};
  return all;
}
const Texts kVerdicts = {"READY", "CONDITIONAL", "NOT READY"};
const Texts kOutcomes = {"pass", "fail", "error", "crash", "hang", "skip", "inconclusive", "blocked"};
const Texts kChanges = {"same", "changed", "new", "gone", "first_told", "no_longer_told"};

void must_be_a_name(const Reader& at, const char* key, const std::string& name) {
  if (name.find_first_not_of(kNameLetters) != std::string::npos || name.front() == '-')
    at.refuse(key, fmt::format("'{}' is no name: small letters, digits and '-'", name));
}

// A file beside the scenario: no way out of its folder.
std::string file_name(Reader& at, const char* key) {
  std::string name = at.text_or(key, "");
  if (name.find('/') != std::string::npos || name.starts_with("."))
    at.refuse(key, fmt::format("'{}' must be a file in the scenario's own folder, by its name", name));
  return name;
}

Attempt attempt_of(Reader& at, Context& context) {
  Attempt one;
  one.name = at.text("name");
  must_be_a_name(at, "name", one.name);
  if (std::count(context.attempts.begin(), context.attempts.end(), one.name) > 0)
    at.refuse("name", fmt::format("'{}' stands twice", one.name));
  one.said = at.text("said");
  if (at.has("level")) one.level = at.one_of("level", {"smoke", "standard"}, "level");
  one.suites = at.known_texts("suites", context.known.suites, "suite");
  one.cases = at.texts("cases");
  if (one.suites.empty() == one.cases.empty()) at.refuse("suites", "needs suites or cases, one of them");
  one.excludes = at.texts("excludes");
  for (const Texts* words : {&one.cases, &one.excludes})
    for (const std::string& word : *words)
      if (word.find('/') == std::string::npos) at.refuse("cases", fmt::format("'{}' is no case: SUITE/CASE", word));
  one.model = file_name(at, "model");
  one.expect = file_name(at, "expect");
  one.gates = at.flag("gates");
  one.settings = at.text_map("settings", context.known.settings, "setting that a scenario may set");
  one.flags = at.text_map("flags", context.known.flags, "flag of this program");
  one.inject = at.known_texts("inject", context.known.faults, "planted fault");
  one.inject_on_gpu = at.known_texts("inject_on_gpu", context.known.faults, "planted fault");
  at.done();
  context.attempts.push_back(one.name);
  return one;
}

std::string attempt_name(Reader& at, const char* key, const Context& context) {
  std::string name = at.text(key);
  at.must_be_known(key, name, context.attempts, "attempt of this scenario");
  return name;
}

std::string code_of(Reader& at, const Context& context) {
  std::string code = at.text("code");
  at.must_be_known("code", code, context.known.codes, "finding code");
  return code;
}

std::string pointer(Reader& at) {
  std::string text = at.text_or("at", "");
  if (!text.empty() && !text.starts_with("/")) at.refuse("at", "must be a JSON pointer: /key/key");
  try {
    (void)Json::json_pointer(text);
  } catch (const Json::exception&) {
    at.refuse("at", fmt::format("'{}' is no JSON pointer", text));
  }
  return text;
}

Wanted wanted_of(Reader& at, bool values) {
  Wanted wanted;
  wanted.names = at.texts("names");
  if (!values) return wanted;
  if (at.has("is")) wanted.is = at.any("is");
  wanted.at_least = at.number("at_least");
  wanted.at_most = at.number("at_most");
  return wanted;
}

void must_want(const Reader& at, const Wanted& wanted) {
  if (!wanted.is && !wanted.at_least && !wanted.at_most && wanted.names.empty())
    at.refuse("is", "what is wanted? one of is, at_least, at_most, names");
}

void read_comparison(Reader& at, const Context& context, Look& look) {
  look.from = attempt_name(at, "from", context);
  look.attempt = attempt_name(at, "to", context);
  if (look.from == look.attempt) at.refuse("to", "an attempt is not compared with itself");
}

Look look_of(Reader& at, const Context& context) {
  Texts words;
  for (const auto& [word, kind] : kinds()) words.emplace_back(word);
  const std::string word = at.one_of("kind", words, "kind of look");
  Look look;
  look.kind = std::find_if(kinds().begin(), kinds().end(), [&](const auto& row) { return row.first == word; })->second;
  const bool compares = look.kind == Kind::compared || look.kind == Kind::went_in;
  if (compares)
    read_comparison(at, context, look);
  else if (at.has("attempt"))
    look.attempt = attempt_name(at, "attempt", context);
  const bool of_cases =
      look.kind == Kind::clean || look.kind == Kind::outcome || look.kind == Kind::metric || look.kind == Kind::told;
  if (of_cases) look.where = at.text("case");
  switch (look.kind) {
    case Kind::finding:
    case Kind::compared:
      look.code = code_of(at, context);
      look.where = at.text_or("case", "*");
      if (look.kind == Kind::compared) look.word = at.one_of("change", kChanges, "change");
      if (look.kind == Kind::finding) look.wanted = wanted_of(at, false);
      break;
    case Kind::clean:
      if (at.has("code")) look.code = code_of(at, context);
      break;
    case Kind::outcome:
      look.word = at.one_of("is", kOutcomes, "outcome");
      break;
    case Kind::metric:
    case Kind::told:
      look.key = at.text(look.kind == Kind::metric ? "metric" : "fact");
      if (look.kind == Kind::told) look.at = pointer(at);
      look.wanted = wanted_of(at, true);
      must_want(at, look.wanted);
      break;
    case Kind::record:
      look.at = pointer(at);
      if (look.at.empty()) at.refuse("at", "is missing");
      look.wanted = wanted_of(at, true);
      must_want(at, look.wanted);
      break;
    case Kind::not_tested:
      look.wanted = wanted_of(at, false);
      must_want(at, look.wanted);
      break;
    case Kind::verdict:
      look.word = at.one_of("is", kVerdicts, "verdict");
      break;
    case Kind::went_in:
      look.key = at.text("key");
      break;
  }
  at.done();
  return look;
}

Fact fact_of(Reader& at, const Context& context, std::set<std::string>& ids) {
  Fact fact;
  fact.id = at.text("id");
  must_be_a_name(at, "id", fact.id);
  if (!ids.insert(fact.id).second) at.refuse("id", fmt::format("'{}' stands twice", fact.id));
  fact.said = at.text("said");
  fact.needs_gpu = at.text_or("needs_gpu", "");
  fact.beyond = at.text_or("beyond", "");
  if (!fact.beyond.empty()) {
    if (at.has("looks") || !fact.needs_gpu.empty()) at.refuse("beyond", "what no run can show has no looks");
  } else {
    for (Reader& look : at.objects("looks")) fact.looks.push_back(look_of(look, context));
  }
  at.done();
  return fact;
}

Cause cause_of(Reader& at, const Context& context) {
  Texts known = context.known.causes;
  known.insert(known.end(), context.known.codes.begin(), context.known.codes.end());
  Cause cause{at.text("said"), at.known_texts("of", known, "cause or finding code"), at.texts("names"),
              at.text_or("needs_gpu", "")};
  if (cause.of.empty()) at.refuse("of", "is missing");
  at.done();
  return cause;
}

std::string major_of(const std::string& version) { return version.substr(0, version.find('.')); }

void check_schema(Reader& at, const std::string& file) {
  if (const std::string schema = at.text("schema"); schema != kSchema)
    at.refuse("schema", fmt::format("'{}' is not '{}'", schema, kSchema));
  if (const std::string version = at.text("schema_version"); major_of(version) != major_of(kVersion))
    throw ScenarioError(
        fmt::format("{}: schema_version: {} cannot be read; this program reads {}", file, version, kVersion), true);
}

int wanted_exit_code(Reader& at, const char* key, const std::string& verdict) {
  const std::optional<double> code = at.number(key);
  if (!code || *code != static_cast<int>(*code) || *code < 0 || *code > 255)
    at.refuse(key, "must be the exit code of the run that is judged");
  if ((*code == 0) != (verdict == "READY")) at.refuse(key, fmt::format("{} does not go with {}", *code, verdict));
  return static_cast<int>(*code);
}

}  // namespace

const Attempt& Scenario::attempt(const std::string& wanted) const {
  const std::string& which = wanted.empty() ? judged : wanted;
  return *std::find_if(attempts.begin(), attempts.end(), [&](const Attempt& one) { return one.name == which; });
}

void Attempt::plant_on(const std::string& device) {
  const auto stands = [](const Texts& texts, const std::string& fault) {
    return std::find(texts.begin(), texts.end(), fault) != texts.end();
  };
  if (device != "cuda")
    std::erase_if(inject, [&](const std::string& fault) { return stands(inject_on_gpu, fault); });
  else
    for (const std::string& fault : inject_on_gpu)
      if (!stands(inject, fault)) inject.push_back(fault);
}

int Scenario::exit_code_on(const std::string& device) const {
  return device == "cuda" ? exit_code_on_gpu.value_or(exit_code) : exit_code;
}

Scenario parse(const std::string& text, const std::string& file, const std::string& name, const Known& known) {
  const Json json = parse_object(text, file);
  Reader at(json, file + ":");
  check_schema(at, file);
  Scenario scenario;
  scenario.name = name;
  scenario.title = at.text("title");
  scenario.seed = at.text("seed");
  scenario.configuration = at.any("configuration");
  Context context{known, {}};
  for (Reader& one : at.objects("attempts")) scenario.attempts.push_back(attempt_of(one, context));
  scenario.judged = at.has("judged") ? attempt_name(at, "judged", context) : context.attempts.back();
  scenario.verdict = at.one_of("verdict", kVerdicts, "verdict");
  scenario.exit_code = wanted_exit_code(at, "exit_code", scenario.verdict);
  if (at.has("exit_code_on_gpu"))
    scenario.exit_code_on_gpu = wanted_exit_code(at, "exit_code_on_gpu", scenario.verdict);
  for (Reader& one : at.objects("causes")) scenario.causes.push_back(cause_of(one, context));
  std::set<std::string> ids;
  for (Reader& one : at.objects("facts")) scenario.facts.push_back(fact_of(one, context, ids));
  at.done();
  return scenario;
}

}  // namespace suites::scenario
