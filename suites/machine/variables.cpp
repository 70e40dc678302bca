#include "suites/machine/variables.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/nearest.hpp"
#include "base/parse_number.hpp"
#include "harness/provenance.hpp"
#include "harness/settings.hpp"
#include "nsa/flags.hpp"
#include "suites/codes.hpp"

namespace suites::machine {

namespace {

struct Harmful {
  const char* name;
  const char* value;  // the one that harms
  const char* why;
};
constexpr std::array kHarmful = {
    Harmful{"CUDA_LAUNCH_BLOCKING", "1", "every kernel launch waits for the GPU: for finding a crash, never for a run"},
    Harmful{"PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "every tensor is allocated by the driver, which waits for the GPU"},
    Harmful{"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", "fp32 products are made in TF32, with 10 bits of mantissa"},
    Harmful{"NVIDIA_TF32_OVERRIDE", "1", "fp32 products are made in TF32, with 10 bits of mantissa"},
    Harmful{"TORCH_SHOW_DISPATCH_TRACE", "1", "every operation prints a line"}};
// Thread counts that libraries take from the environment, in the order in which torch believes them.
constexpr std::array kThreadVariables = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"};

const std::vector<std::string>& allocator_keys() {
  static const std::vector<std::string> keys = {"backend",
                                                "expandable_segments",
                                                "garbage_collection_threshold",
                                                "graph_capture_record_stream_reuse",
                                                "large_segment_size_mb",
                                                "max_non_split_rounding_mb",
                                                "max_split_size_mb",
                                                "per_process_memory_fraction",
                                                "pinned_num_register_threads",
                                                "pinned_reserve_segment_size_mb",
                                                "pinned_use_background_threads",
                                                "pinned_use_cuda_host_register",
                                                "release_lock_on_cudamalloc",
                                                "roundup_power2_divisions"};
  return keys;
}

std::string value_of(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

struct Pin {
  std::string name, value;
};
std::optional<Pin> parse_pin(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) return std::nullopt;
  return Pin{text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace

Variables variables_of(const Json& provenance) {
  Variables variables;
  if (!provenance.contains("environment")) return variables;
  for (const auto& [name, value] : provenance["environment"].items()) variables[name] = value.get<std::string>();
  return variables;
}

Inspection judge_variables(const Variables& variables) {
  Inspection result;
  result.subject = "variables";
  result.seen = Json(variables);
  result.summary = fmt::format("environment: {} variable(s) set that matter", variables.size());
  for (const Harmful& bad : kHarmful) {
    const std::string value = value_of(variables, bad.name);
    result.judgements.push_back({fmt::format("variables.{}", bad.name),
                                 value != bad.value,
                                 fmt::format("{}={}: {}", bad.name, value, bad.why),
                                 codes::kHarmfulVariable,
                                 {{"variable", bad.name}, {"value", value}}});
  }
  const AllocatorSettings allocator = allocator_settings(variables);
  std::string hints;
  for (const std::string& key : allocator.unknown) {
    const std::string near = base::nearest(key, allocator_keys());
    hints += fmt::format("{}'{}'{}", hints.empty() ? "" : ", ", key,
                         near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
  }
  result.judgements.push_back({"variables.allocator",
                               allocator.unknown.empty(),
                               fmt::format("{}={}: torch knows no key {}; known: {}", allocator.variable,
                                           allocator.text, hints, fmt::join(allocator_keys(), ", ")),
                               codes::kHarmfulVariable,
                               {{"variable", allocator.variable}, {"value", allocator.text}}});
  return result;
}

Inspection judge_threads(const Variables& variables, int usable_cores, int threads) {
  Inspection result;
  result.subject = "thread_settings";
  result.seen = {{"usable_cores", usable_cores}};
  if (threads > 0) result.seen["threads_within_an_operation"] = threads;
  for (const char* name : kThreadVariables) {
    const std::string value = value_of(variables, name);
    if (value.empty()) continue;
    result.seen[name] = value;
    const std::optional<int> count = base::parse_number<int>(value);
    const Json evidence = {{"variable", name}, {"value", value}, {"usable_cores", usable_cores}};
    result.judgements.push_back(
        {fmt::format("threads.{}", name), count && *count >= 1 && *count <= usable_cores,
         fmt::format("{}={}, and {} core(s) may be used: allowed 1 to {}", name, value, usable_cores, usable_cores),
         codes::kThreadSettings, evidence});
  }
  if (threads > 0) {
    result.judgements.push_back(
        {"threads.torch", threads <= usable_cores,
         fmt::format("torch works with {} threads on {} core(s): they wait for one another", threads, usable_cores),
         codes::kThreadSettings, result.seen});
  }
  result.summary = threads > 0 ? fmt::format("threads: {} on {} core(s)", threads, usable_cores)
                               : fmt::format("threads: {} core(s) may be used", usable_cores);
  return result;
}

bool AllocatorSettings::expandable_segments() const {
  const auto set = known.find("expandable_segments");
  return set != known.end() && (set->second == "True" || set->second == "true" || set->second == "1");
}

AllocatorSettings allocator_settings(const Variables& variables) {
  AllocatorSettings settings;
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    if (settings.text.empty() && !value_of(variables, name).empty()) {
      settings.variable = name;
      settings.text = value_of(variables, name);
    }
  }
  // "key:value,key:[a,b],key:value": commas inside brackets belong to a value.
  std::vector<std::string> items(1);
  int depth = 0;
  for (const char letter : settings.text) {
    depth += letter == '[' ? 1 : letter == ']' ? -1 : 0;
    if (letter == ',' && depth == 0)
      items.emplace_back();
    else if (letter != ' ')
      items.back() += letter;
  }
  for (const std::string& item : items) {
    if (item.empty()) continue;
    const std::size_t colon = item.find(':');
    const std::string key = item.substr(0, colon);
    const bool known = std::find(allocator_keys().begin(), allocator_keys().end(), key) != allocator_keys().end();
    if (known && colon != std::string::npos)
      settings.known[key] = item.substr(colon + 1);
    else
      settings.unknown.push_back(key);
  }
  return settings;
}

std::string bad_pin(const std::string& text, const PinnedFacts& facts) {
  const std::optional<Pin> pin = parse_pin(text);
  if (!pin) return fmt::format("'{}' is not NAME=value", text);
  std::vector<std::string> known = facts.recorded;
  for (const nsa::FlagSpec& flag : nsa::flag_table()) known.emplace_back(flag.name);
  for (const auto& [field, value] : facts.fields) known.push_back(field);
  if (std::find(known.begin(), known.end(), pin->name) != known.end()) return "";
  const std::string near = base::nearest(pin->name, known);
  return fmt::format(
      "'{}' cannot be pinned{}; allowed: the NSA_* variables and the fields of the effective flags (`nsa-validate "
      "doctor` "
      "lists both), and {}",
      pin->name, near.empty() ? "" : fmt::format(", did you mean {}?", near), fmt::join(facts.recorded, ", "));
}

PinnedFacts pinned_facts(const Json& provenance, const Variables& environment) {
  const auto recorded = harness::recorded_variables();
  PinnedFacts facts{
      variables_of(provenance), {recorded.begin(), recorded.end()}, nsa::flatten(nsa::resolve(environment))};
  facts.variables.insert(environment.begin(), environment.end());
  return facts;
}

Inspection judge_pins(const std::vector<std::string>& pins, const PinnedFacts& facts) {
  Inspection result;
  result.subject = "pins";
  Json rows = Json::array();
  std::string text;
  for (const std::string& line : pins) {
    if (const std::string reason = bad_pin(line, facts); !reason.empty()) throw harness::UsageError(reason);
    const Pin pin = *parse_pin(line);
    const auto field = facts.fields.find(pin.name);
    const std::string actual = field != facts.fields.end() ? field->second : value_of(facts.variables, pin.name);
    if (actual == pin.value) continue;
    const auto shown = [](const std::string& value) { return value.empty() ? "unset" : value; };
    rows.push_back({{"name", pin.name}, {"expected", pin.value}, {"actual", actual}});
    text += fmt::format("{}{} is {}, expected {}", text.empty() ? "" : "; ", pin.name, shown(actual), shown(pin.value));
  }
  result.seen = {{"pins", pins}, {"differences", rows}};
  result.summary = fmt::format("pins: {} expected, {} differ", pins.size(), rows.size());
  result.judgements.push_back({"pins", rows.empty(), text, codes::kUnexpectedFlags, {{"differences", rows}}});
  return result;
}

}  // namespace suites::machine
