#include "reports/bundle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "reports/fields.hpp"
#include "reports/journal.hpp"
#include "reports/records.hpp"

namespace reports {

namespace {

constexpr std::size_t kMostFindings = 32;
constexpr std::size_t kMostEvidenceBytes = std::size_t{16} << 10;  // of one finding
constexpr std::size_t kMostWordBytes = 120;                        // of a word of a place
constexpr std::size_t kMostNesting = 100;
constexpr std::size_t kMostProvenanceBytes = std::size_t{256} << 10;

// Words of an evidence that say where a failure is, as the suites and the harness write them.
constexpr const char* kWords[] = {"op",       "stage",     "tensor",   "parameter", "branch",   "output",
                                  "gradient", "direction", "function", "backend",   "identity", "operation",
                                  "signal",   "phase",     "stop",     "anomaly"};
constexpr const char* kNumbers[] = {"layer", "row", "head", "group", "step", "S"};

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

std::string without_numbers(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, kMostWordBytes)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit)
      out += is_control(c) ? ' ' : c;
    else if (!out.ends_with('#'))
      out += '#';
  }
  return out;
}

// Of the findings that count, the first of the worst.
const Finding* leading(const Case& c) {
  const Finding* worst = nullptr;
  for (const Finding& f : c.findings)
    if (worst == nullptr || f.severity > worst->severity) worst = &f;
  return worst;
}

Json finding_json(const Finding& f) {
  Json evidence = f.evidence.is_object() ? f.evidence : Json::object();
  if (const std::size_t bytes = dump(evidence).size(); bytes > kMostEvidenceBytes)
    evidence = {{"left_out", fmt::format("{} bytes, in the run's journal", bytes)}};
  return {{"code", f.code},       {"severity", to_string(f.severity)}, {"category", f.category}, {"title", f.title},
          {"message", f.message}, {"evidence", std::move(evidence)}};
}

Json signature_json(const Signature& s) {
  return {{"status", s.status}, {"code", s.code}, {"severity", s.severity}, {"reason_code", s.reason_code},
          {"place", s.place},   {"at", s.at},     {"codes", s.codes}};
}

// Without those that stand beside them: "seed" and "device".
Json settings_of(const Run& run) {
  Json settings = Json::object();
  const Json values = run.provenance.value(Json::json_pointer("/settings/values"), Json::object());
  for (const auto& [key, item] : values.items())
    if (item.is_object() && item.value("origin", "default") != "default" && key != "run.seed" && key != "run.device")
      settings[key] = item;
  return settings;
}

Json resolved_of(const Run& run) {
  const Json config = run.provenance.value("config", Json::object());
  return {{"file", config.value("file", "")}, {"values", config.value("resolved", Json::object())}};
}

Json environment_of(const Run& run) {
  Json all = run.provenance.value("environment", Json::object());
  const Json flags = run.provenance.value(Json::json_pointer("/flags/set"), Json::object());
  for (const auto& [name, value] : flags.items()) all[name] = value;
  return all;
}

// What stands nowhere else in the bundle.
Json rest_of_provenance(const Run& run) {
  Json rest = Json::object();
  static const std::set<std::string> kElsewhere = {"program", "settings", "selection", "environment", "flags"};
  for (const auto& [key, item] : run.provenance.items())
    if (!kElsewhere.contains(key)) rest[key] = item;
  if (rest.contains("config") && rest["config"].is_object()) rest["config"].erase("resolved");
  if (const std::size_t bytes = dump(rest).size(); bytes > kMostProvenanceBytes)
    rest = {{"left_out", fmt::format("{} bytes, in the run's journal", bytes)}};
  return rest;
}

}  // namespace

Signature signature_of(const Case& c) {
  Signature s;
  s.status = std::string(to_string(outcome(c)));
  s.reason_code = c.reason_code;
  std::set<std::string> codes;
  for (const Finding& f : c.findings)
    if (failing(f.severity)) codes.insert(f.code);
  s.codes.assign(codes.begin(), codes.end());
  const Finding* finding = leading(c);
  if (finding == nullptr) return s;
  s.code = finding->code;
  s.severity = std::string(to_string(finding->severity));
  if (!finding->evidence.is_object()) return s;
  for (const char* key : kWords)
    if (const auto it = finding->evidence.find(key); it != finding->evidence.end() && it->is_string())
      s.place[key] = without_numbers(it->get<std::string>());
  for (const char* key : kNumbers)
    if (const auto it = finding->evidence.find(key); it != finding->evidence.end() && it->is_number()) s.at[key] = *it;
  return s;
}

bool same_failure(const Signature& a, const Signature& b) {
  if (a.status != b.status || a.code != b.code || a.place.size() != b.place.size()) return false;
  if (a.code.empty() && a.reason_code != b.reason_code) return false;
  return std::all_of(a.place.items().begin(), a.place.items().end(), [&](const auto& item) {
    return b.place.contains(item.key()) && b.place.at(item.key()) == item.value();
  });
}

std::string to_string(const Signature& s) {
  std::string text = s.status;
  if (!s.code.empty()) text += fmt::format(", {} ({})", s.code, s.severity);
  if (s.code.empty() && !s.reason_code.empty()) text += fmt::format(", {}", s.reason_code);
  for (const Json* part : {&s.place, &s.at})
    for (const auto& [key, value] : part->items())
      if (value != Json(""))
        text += fmt::format(", {} {}", key, value.is_string() ? value.get<std::string>() : dump(value));
  return text;
}

Json bundle_of(const Run& run, const Case& c, const Slice& slice, const Json& inputs) {
  Json findings = Json::array();
  for (const Finding& f : c.findings)
    if (findings.size() < kMostFindings) findings.push_back(finding_json(f));
  const Json program = run.provenance.value("program", Json::object());
  return {{"schema", kBundleSchema},
          {"schema_version", kBundleVersion},
          {"program", {{"name", program.value("name", "")}, {"version", program.value("version", "")}}},
          {"run", {{"id", run.id}, {"started", run.started}, {"level", run.level}, {"complete", run.complete}}},
          {"case",
           {{"id", c.id},
            {"suite", c.suite},
            {"level", c.level},
            {"status", to_string(outcome(c))},
            {"phase", c.last_phase},
            {"reason", c.reason}}},
          {"device", run.device},
          {"seed", run.master_seed},
          {"faults", run.faults.is_array() ? run.faults : Json::array()},
          {"settings", settings_of(run)},
          {"resolved", resolved_of(run)},
          {"environment", environment_of(run)},
          {"provenance", rest_of_provenance(run)},
          {"signature", signature_json(signature_of(c))},
          {"findings", findings},
          {"findings_left_out", c.findings.size() - findings.size()},
          {"inputs", inputs},
          {"journal", {{"events", slice.events}, {"left_out", slice.left_out}}}};
}

bool stays_below(std::string_view path) {
  if (path.empty() || path.front() == '/' || path.find('\0') != std::string_view::npos) return false;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

namespace {

void refuse_other_keys(const Json& object, std::initializer_list<const char*> known) {
  for (const auto& [key, value] : object.items())
    if (std::none_of(known.begin(), known.end(), [&](const char* k) { return key == k; }))
      throw std::invalid_argument(fmt::format("key '{}' is unknown", key.substr(0, 60)));
}

// An object under `key` with these keys and no others.
const Json& part(const Json& json, const char* key, std::initializer_list<const char*> known) {
  const Json& object = fields::object(json, key);
  fields::within(key, [&] { refuse_other_keys(object, known); });
  return object;
}

std::map<std::string, std::string> texts(const Json& json, const char* key) {
  std::map<std::string, std::string> found;
  for (const auto& [name, value] : fields::object(json, key).items()) {
    if (name.empty() || !value.is_string())
      fields::within(key, [&, n = name] { fields::reject(json.at(key), n, "a string"); });
    found[name] = value.get<std::string>();
  }
  return found;
}

std::vector<std::string> words(const Json& json, const char* key) {
  std::vector<std::string> found;
  for (const Json& item : fields::array(json, key)) {
    if (!item.is_string() || item.get<std::string>().empty()) fields::reject(json, key, "an array of names");
    found.push_back(item.get<std::string>());
  }
  return found;
}

Signature read_signature(const Json& json) {
  const Json& object = part(json, "signature", {"status", "code", "severity", "reason_code", "place", "at", "codes"});
  return fields::within("signature", [&] {
    Signature s;
    s.status = to_string(records::status(object));
    if (tally(records::status(object)) != Tally::failed)
      fields::reject(object, "status", "one of a failure: fail, error, crash, hang");
    s.code = fields::prose(object, "code");
    s.severity = fields::prose(object, "severity");
    s.reason_code = fields::prose(object, "reason_code");
    (void)texts(object, "place");
    s.place = fields::object(object, "place");
    s.at = fields::object(object, "at");
    s.codes = words(object, "codes");
    return s;
  });
}

void check_inputs(const Json& json) {
  for (const Json& item : fields::array(json, "inputs")) {
    fields::within("inputs", [&] {
      if (!item.is_object()) throw std::invalid_argument("is no array of objects");
      refuse_other_keys(item, {"path", "hash", "bytes"});
      if (!stays_below(fields::text(item, "path")))
        fields::reject(item, "path", "a path below the run's folder, without '..'");
      (void)fields::prose(item, "hash");
      (void)fields::natural(item, "bytes");
    });
  }
}

void check_minimised(const Json& json) {
  if (!json.contains("minimised")) return;
  const Json& object = part(json, "minimised", {"from", "tries", "seconds", "sizes"});
  fields::within("minimised", [&] {
    (void)fields::text(object, "from");
    (void)fields::natural(object, "tries");
    (void)fields::seconds(object, "seconds");
    for (const Json& row : fields::array(object, "sizes")) {
      if (!row.is_object()) throw std::invalid_argument("sizes: is no array of objects");
      refuse_other_keys(row, {"setting", "before", "after"});
      for (const char* key : {"setting", "before", "after"}) (void)fields::text(row, key);
    }
  });
}

// What is shown, or named to the system, as it stands.
void refuse_control_characters(const Json& value, const std::string& where) {
  const auto check = [&](const std::string& text) {
    for (const char c : text)
      if (is_control(c))
        throw std::invalid_argument(
            fmt::format("{}: a control character (0x{:02x}) stands in it", where, static_cast<unsigned char>(c)));
  };
  if (value.is_string()) check(value.get_ref<const std::string&>());
  if (value.is_object())
    for (const auto& [key, item] : value.items()) check(key), refuse_control_characters(item, where);
  if (value.is_array())
    for (const Json& item : value) refuse_control_characters(item, where);
}

Bundle bundle_from(const Json& json) {
  refuse_other_keys(json, {"schema", "schema_version", "seal", "program", "run", "case", "device", "seed", "faults",
                           "settings", "resolved", "environment", "provenance", "signature", "findings",
                           "findings_left_out", "inputs", "journal", "minimised"});
  for (const char* key : {"device", "environment", "faults", "program", "run", "signature"})
    if (json.contains(key)) refuse_control_characters(json[key], key);
  Bundle bundle;
  bundle.program = fields::within(
      "program", [&, &p = part(json, "program", {"name", "version"})] { return fields::text(p, "name"); });
  (void)part(json, "run", {"id", "started", "level", "complete"});
  const Json& planned = part(json, "case", {"id", "suite", "level", "status", "phase", "reason"});
  fields::within("case", [&] {
    bundle.case_id = fields::text(planned, "id");
    refuse_control_characters(bundle.case_id, "id");
    bundle.suite = fields::text(planned, "suite");
    (void)records::level(planned);
    (void)records::status(planned);
  });
  bundle.device = fields::text(json, "device");
  if (bundle.device != "cpu" && bundle.device != "cuda") fields::reject(json, "device", "cpu or cuda");
  bundle.seed = fields::natural(json, "seed");
  bundle.faults = words(json, "faults");
  for (const auto& [key, item] : fields::object(json, "settings").items()) {
    fields::within("settings", [&, &k = key, &value = item] {
      if (k.empty() || !value.is_object())
        throw std::invalid_argument(fmt::format("'{}' is no object", k.substr(0, 60)));
      fields::within(k, [&] {
        refuse_other_keys(value, {"value", "origin"});
        bundle.settings.push_back({k, fields::prose(value, "value"), fields::text(value, "origin")});
      });
    });
  }
  const Json& resolved = part(json, "resolved", {"file", "values"});
  fields::within("resolved", [&] {
    bundle.resolved_file = fields::prose(resolved, "file");
    bundle.resolved = texts(resolved, "values");
  });
  bundle.environment = texts(json, "environment");
  (void)fields::object(json, "provenance");
  bundle.signature = read_signature(json);
  (void)fields::array(json, "findings");
  (void)fields::natural(json, "findings_left_out");
  check_inputs(json);
  const Json& journal = part(json, "journal", {"events", "left_out"});
  fields::within("journal", [&] {
    (void)fields::array(journal, "events");
    (void)fields::natural(journal, "left_out");
  });
  check_minimised(json);
  return bundle;
}

}  // namespace

Bundle parse_bundle(const std::string& text, const std::string& name) {
  const auto damaged = [&](const std::string& why) { return JournalError(fmt::format("{}: {}", name, why), false); };
  if (text.size() > kMostBundleBytes)
    throw damaged(fmt::format("longer than {} MiB: no bundle", kMostBundleBytes >> 20));
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) throw damaged("it is empty");
  if (records::nests_deeper(std::string_view(text), kMostNesting)) throw damaged("no bundle: brackets nest too deep");
  try {
    Json json = parse_edited(text);
    if (!json.is_object()) throw std::invalid_argument("no bundle: not a JSON object");
    records::check_schema(json, kBundleSchema, kBundleVersion, name, "bundle");
    Bundle bundle = bundle_from(json);
    bundle.json = std::move(json);
    return bundle;
  } catch (const Json::parse_error& error) {
    throw damaged(error.byte > text.size()
                      ? fmt::format("cut off after {} bytes: not all of the bundle is there", text.size())
                      : fmt::format("no bundle: invalid JSON at byte {}", error.byte));
  } catch (const Json::exception& error) {  // a number too large for any type
    throw damaged(fmt::format("no bundle: {}", error.what()));
  } catch (const std::invalid_argument& error) {
    throw damaged(error.what());
  }
}

}  // namespace reports
