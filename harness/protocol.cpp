#include "harness/protocol.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "harness/journal_writer.hpp"

namespace harness {

std::string to_text(const WorkOrder& order) {
  return to_line({{"probe", order.probe},
                  {"supervisor", order.supervisor},
                  {"worker", order.worker},
                  {"suite", order.suite},
                  {"cases", order.cases},
                  {"faults", order.faults},
                  {"seed", order.seed},
                  {"cuda", order.cuda},
                  {"folder", order.folder.string()},
                  {"run_id", order.run_id},
                  {"settings", order.settings},
                  {"provenance", order.provenance}});
}

WorkOrder parse_order(const std::string& text) try {
  const Json json = Json::parse(text);
  WorkOrder order;
  order.probe = json.at("probe").get<bool>();
  order.supervisor = json.at("supervisor").get<pid_t>();
  order.worker = json.at("worker").get<int>();
  order.suite = json.at("suite").get<std::string>();
  order.cases = json.at("cases").get<std::vector<std::string>>();
  order.faults = json.at("faults").get<std::vector<std::string>>();
  order.seed = json.at("seed").get<std::uint64_t>();
  order.cuda = json.at("cuda").get<bool>();
  order.folder = json.at("folder").get<std::string>();
  order.run_id = json.at("run_id").get<std::string>();
  order.settings = json.at("settings");
  order.provenance = json.at("provenance");
  return order;
} catch (const Json::exception& error) {
  throw UsageError(
      fmt::format("{} is started by the program itself; its order is not valid: {}", kWorkerVerb, error.what()));
}

std::filesystem::path stacks_file(const WorkOrder& order) {
  return order.folder / fmt::format("logs/stacks-{}.txt", order.worker);
}

std::filesystem::path waiting_file(const WorkOrder& order) {
  return order.folder / fmt::format("logs/waiting-{}.txt", order.worker);
}

Json changed_settings(const Settings& settings) {
  Json changed = Json::array();
  for (const auto& [key, value] : settings.values())
    if (value.origin != "default") changed.push_back(Json::array({key, value.text, value.origin}));
  return changed;
}

void apply_settings(Settings& settings, const Json& changed) {
  for (const Json& item : changed)
    settings.set(item.at(0).get<std::string>(), item.at(1).get<std::string>(), item.at(2).get<std::string>());
}

namespace {

SettingSpec number(const char* key, SettingType type, const char* value, double minimum, const char* meaning) {
  SettingSpec spec;
  spec.key = key;
  spec.type = type;
  spec.default_value = value;
  spec.minimum = minimum;
  spec.meaning = meaning;
  return spec;
}

SettingSpec choice(const char* key, std::vector<std::string> words, const char* meaning) {
  SettingSpec spec;
  spec.key = key;
  spec.default_value = words.front();
  spec.one_of = std::move(words);
  spec.meaning = meaning;
  return spec;
}

}  // namespace

std::vector<SettingSpec> own_settings() {
  constexpr auto kReal = SettingType::real, kInteger = SettingType::integer;
  return {
      number("run.hang_s", kReal, "30", 0.1, "seconds without progress that count as a hang"),
      number("run.timeout_s", kReal, "0", 0, "absolute limit of every case in seconds; 0: each case's own"),
      number("run.calm_s", kReal, "20", 0, "seconds to wait for a calm machine before a disturbed timing is repeated"),
      number("run.start_s", kReal, "120", 0.1, "seconds that a worker may take to start"),
      number("run.seed", kInteger, "42", 0, "master seed; every other seed is derived from it"),
      number("run.log_mib", kInteger, "8", 1, "size at which a worker's log is cut off"),
      choice("run.isolation", {"suite", "case", "none"}, "one worker process a suite, a case, or none"),
      choice("run.gates", {"decide", "report"}, "whether gates on speed decide the verdict"),
      choice("run.device", {"auto", "cpu", "cuda"}, "where the cases run; auto: on a GPU if one is usable"),
  };
}

std::vector<SettingSpec> all_setting_specs(const Program& program) {
  std::vector<SettingSpec> specs = own_settings();
  specs.insert(specs.end(), program.settings.begin(), program.settings.end());
  return specs;
}

void LineReader::feed(std::string_view bytes) {
  buffer_.erase(0, begin_);
  scanned_ -= begin_;
  begin_ = 0;
  buffer_.append(bytes);
}

bool LineReader::next(std::string& line) {
  const std::size_t end = buffer_.find('\n', scanned_);
  if (std::min(end, buffer_.size()) - begin_ >= kMaxLine)
    throw ProtocolViolation(fmt::format("a line of more than {} bytes", kMaxLine));
  scanned_ = end == std::string::npos ? buffer_.size() : end + 1;
  if (end == std::string::npos) return false;
  line.assign(buffer_, begin_, end - begin_);
  begin_ = scanned_;
  return true;
}

}  // namespace harness
