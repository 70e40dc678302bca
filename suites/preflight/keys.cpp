// Every key of a configuration file reaches the field that it is named after, and no other; an override wins over it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "suites/codes.hpp"
#include "suites/preflight/checks.hpp"

namespace suites::preflight_checks {

namespace {

// A key, a value that is not its default, and whether a configuration holds that value. Written by hand: what the
// product's own table says of its keys may be wrong.
struct Key {
  std::string name, value;
  bool (*arrived)(const nsa::Config& c);
  std::vector<nsa::Override> company = {};  // without which the value is refused
};

const std::vector<Key>& keys() {
  using C = const nsa::Config&;
  static const std::vector<Key> all = {
      {"model.name", "other", [](C c) { return c.model.name == "other"; }},
      {"model.dim", "96", [](C c) { return c.model.dim == 96; }},
      {"model.n_layers", "5", [](C c) { return c.model.n_layers == 5; }},
      {"model.n_heads", "14", [](C c) { return c.model.n_heads == 14; }},
      {"model.n_kv_groups", "3", [](C c) { return c.model.n_kv_groups == 3; }},
      {"model.d_k", "40", [](C c) { return c.model.d_k == 40; }},
      {"model.d_v", "48", [](C c) { return c.model.d_v == 48; }},
      {"model.vocab", "300", [](C c) { return c.model.vocab == 300; }},
      {"model.rope_base", "500", [](C c) { return c.model.rope_base == 500; }},
      {"nsa.l", "48", [](C c) { return c.model.nsa.l == 48; }},
      {"nsa.d", "8", [](C c) { return c.model.nsa.d == 8; }},
      {"nsa.l_sel", "80", [](C c) { return c.model.nsa.l_sel == 80; }},
      {"nsa.n_sel", "7", [](C c) { return c.model.nsa.n_sel == 7; }},
      {"nsa.w", "200", [](C c) { return c.model.nsa.w == 200; }},
      {"nsa.phi", "mlp", [](C c) { return c.model.phi == nsa::Phi::mlp; }},
      {"nsa.gate", "sigmoid", [](C c) { return c.model.gate == nsa::GateActivation::sigmoid; }},
      {"nsa.gate_tau", "0.5", [](C c) { return c.model.gate_tau == 0.5; }},
      {"train.precision", "fp32", [](C c) { return c.train.precision == nsa::Precision::fp32; }},
      {"train.master_weights", "false", [](C c) { return !c.train.master_weights; }},
      {"train.steps", "77", [](C c) { return c.train.steps == 77; }},
      {"train.seq_len", "99", [](C c) { return c.train.seq_len == 99; }},
      {"train.batch_size", "6", [](C c) { return c.train.batch_size == 6; }},
      {"train.accumulate_grad_batches", "4", [](C c) { return c.train.accumulate_grad_batches == 4; }},
      {"train.warmup_steps", "3", [](C c) { return c.train.warmup_steps == 3; }},
      {"train.lr", "0.125", [](C c) { return c.train.lr == 0.125; }},
      {"train.lr_min", "0.0001", [](C c) { return c.train.lr_min == 0.0001; }},
      {"train.weight_decay", "0.25", [](C c) { return c.train.weight_decay == 0.25; }},
      {"train.grad_clip", "0.75", [](C c) { return c.train.grad_clip == 0.75; }},
      {"train.seed", "4242", [](C c) { return c.train.seed == 4242; }},
      {"train.gradient_checkpointing", "true", [](C c) { return c.train.gradient_checkpointing; }},
      {"train.deterministic", "true", [](C c) { return c.train.deterministic; }},
      {"train.data", "other.txt", [](C c) { return c.train.data == "other.txt"; }},
      {"train.order", "shuffled", [](C c) { return c.train.order == nsa::DataOrder::shuffled; }},
      {"train.packed", "true", [](C c) { return c.train.packed; }},
      {"train.validation_share", "0.375", [](C c) { return c.train.validation_share == 0.375; }},
      {"train.skip_bad_lines", "true", [](C c) { return c.train.skip_bad_lines; }},
      {"train.cuda_graph", "false", [](C c) { return c.train.cuda_graph == nsa::CudaGraph::off; }},
      {"train.epochs", "9", [](C c) { return c.train.epochs == 9; }},
      {"train.stop_on_divergence", "false", [](C c) { return !c.train.stop_on_divergence; }},
      {"train.log_every", "11", [](C c) { return c.train.log_every == 11; }},
      {"train.eval_every", "12", [](C c) { return c.train.eval_every == 12; }, {{"train.validation_share", "0.5", ""}}},
      {"train.eval_batches", "13", [](C c) { return c.train.eval_batches == 13; }},
      {"train.save_every", "14", [](C c) { return c.train.save_every == 14; }},
      {"train.keep_checkpoints", "15", [](C c) { return c.train.keep_checkpoints == 15; }},
      {"train.prefetch_batches", "16", [](C c) { return c.train.prefetch_batches == 16; }},
      {"train.loader_timeout_s", "17.5", [](C c) { return c.train.loader_timeout_s == 17.5; }},
      {"train.hang_timeout_s", "18.5", [](C c) { return c.train.hang_timeout_s == 18.5; }},
  };
  return all;
}

// The key as a line of a file: "train:\n  lr: 0.125\n".
std::string yaml_of(const std::vector<nsa::Override>& settings) {
  std::map<std::string, std::string> sections;
  for (const nsa::Override& s : settings) {
    const auto dot = s.key.find('.');
    sections[s.key.substr(0, dot)] += fmt::format("  {}: {}\n", s.key.substr(dot + 1), s.value);
  }
  std::string text;
  for (const auto& [name, lines] : sections) text += name + ":\n" + lines;
  return text;
}

// What is wrong with a key by itself; "" when nothing is.
std::string fault_of(const Key& key, const LoadConfig& load) {
  std::vector<nsa::Override> company = key.company;
  if (company.empty()) company.push_back({"model.name", "base", ""});
  std::vector<nsa::Override> with = company;
  std::erase_if(with, [&](const nsa::Override& o) { return o.key == key.name; });
  with.push_back({key.name, key.value, ""});
  nsa::Config before, after;
  try {
    before = load(yaml_of(company), {});
    after = load(yaml_of(with), {});
  } catch (const nsa::ConfigInvalid& refusal) {
    return fmt::format("{} = {} is refused: {}", key.name, key.value, base::first_line(refusal.what()));
  }
  nsa::Config overridden;
  try {
    overridden = load(yaml_of(with), {{key.name, nsa::flatten(before).at(key.name), "--set"}});
  } catch (const nsa::ConfigInvalid& refusal) {
    return fmt::format("{} cannot be set from outside: {}", key.name, base::first_line(refusal.what()));
  }
  if (!key.arrived(after)) return fmt::format("{} = {} does not reach its field", key.name, key.value);
  if (nsa::flatten(overridden) != nsa::flatten(before))
    return fmt::format("{} = {} of a file is not overridden from outside", key.name, key.value);
  const auto left = nsa::flatten(before), right = nsa::flatten(after);
  for (const auto& [name, value] : right)
    if (name == key.name ? value != key.value : value != left.at(name))
      return fmt::format("with {} = {} the record says {} = {}", key.name, key.value, name, value);
  for (const Key& other : keys())
    if (other.name != key.name && other.arrived(after) != other.arrived(before))
      return fmt::format("{} = {} changes the field of {}", key.name, key.value, other.name);
  return "";
}

}  // namespace

void configuration_keys(Context& context, const LoadConfig& load) {
  std::vector<std::string> unknown;
  for (const auto& [name, value] : nsa::flatten(nsa::Config{}))
    if (std::none_of(keys().begin(), keys().end(), [&](const Key& k) { return k.name == name; }))
      unknown.push_back(name);
  context.expect(
      "every key is known here", unknown.empty(),
      fmt::format("the configuration has keys that nobody here has a value for: {}", fmt::join(unknown, ", ")),
      codes::kConfigKey, {{"said", fmt::format("{} cannot be judged", fmt::join(unknown, ", "))}});
  std::vector<std::string> wrong;
  for (const Key& key : keys())
    if (std::string fault = fault_of(key, load); !fault.empty()) wrong.push_back(std::move(fault));
  context.metric("keys", static_cast<double>(keys().size()), "1");
  const std::string first = wrong.empty() ? "" : wrong.front();
  context.expect("every key reaches its field and no other", wrong.empty(),
                 fmt::format("{} key(s) of the configuration; the first: {}", wrong.size(), first), codes::kConfigKey,
                 {{"said", first}, {"wrong", wrong}});
}

}  // namespace suites::preflight_checks
