#include "nsa/config_schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/parse_number.hpp"

namespace nsa {

namespace {

// The member of a configuration that a key stands for.
template <typename T>
using Member = T& (*)(Config&);

template <typename T>
const T& read(Member<T> member, const Config& config) {
  return member(const_cast<Config&>(config));  // the accessor only forms a reference
}

// The whole of `text` as a number, before which YAML allows a '+'.
template <typename T>
bool read_number(std::string_view text, T& value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const auto parsed = base::parse_number<T>(text);
  if (parsed) value = *parsed;
  return parsed.has_value();
}

template <typename T>
Key number(std::string_view name, Member<T> member, T minimum, T maximum, std::string_view noun) {
  return {.name = name,
          .allowed = fmt::format("must be {} from {} to {}", noun, minimum, maximum),
          .parse = [member](Config& c, std::string_view text) { return read_number(text, member(c)); },
          .format = [member](const Config& c) { return fmt::format("{}", read(member, c) + T{0}); },  // -0 is 0
          .in_range = [=](const Config& c) { return read(member, c) >= minimum && read(member, c) <= maximum; }};
}

Key integer(std::string_view name, Member<std::int64_t> member, std::int64_t minimum, std::int64_t maximum) {
  return number<std::int64_t>(name, member, minimum, maximum, "an integer");
}

Key real(std::string_view name, Member<double> member, double minimum, double maximum) {
  return number<double>(name, member, minimum, maximum, "a number");
}

// Head widths: what every backend serves.
Key width(std::string_view name, Member<std::int64_t> member, std::string_view remark) {
  Key key = integer(name, member, 8, 256);
  key.allowed = fmt::format("must be a multiple of 8 from 8 to 256{}", remark);
  key.in_range = [member](const Config& c) {
    const auto value = read(member, c);
    return value >= 8 && value <= 256 && value % 8 == 0;
  };
  return key;
}

Key boolean(std::string_view name, Member<bool> member) {
  return {.name = name,
          .allowed = "must be true or false",
          .parse =
              [member](Config& c, std::string_view text) {
                if (text != "true" && text != "false") return false;
                member(c) = text == "true";
                return true;
              },
          .format = [member](const Config& c) { return std::string(read(member, c) ? "true" : "false"); },
          .in_range = [](const Config&) { return true; }};
}

Key text(std::string_view name, Member<std::string> member, std::string_view allowed) {
  return {.name = name,
          .allowed = std::string(allowed),
          .is_text = true,
          .parse =
              [member](Config& c, std::string_view value) {
                member(c) = std::string(value);
                return true;
              },
          .format = [member](const Config& c) { return read(member, c); },
          .in_range =
              [member](const Config& c) {
                const auto& value = read(member, c);
                return !value.empty() &&
                       std::none_of(value.begin(), value.end(), [](unsigned char letter) { return letter < ' '; });
              }};
}

template <typename E, std::size_t N>
Key choice(std::string_view name, Member<E> member, const std::array<E, N>& values) {
  std::string allowed = "must be one of";
  for (const auto value : values) allowed += fmt::format("{} {}", value == values.front() ? "" : ",", to_string(value));
  return {.name = name,
          .allowed = allowed,
          .is_text = true,
          .parse =
              [member, values](Config& c, std::string_view text) {
                const auto found =
                    std::find_if(values.begin(), values.end(), [&](E value) { return to_string(value) == text; });
                if (found == values.end()) return false;
                member(c) = *found;
                return true;
              },
          .format = [member](const Config& c) { return std::string(to_string(read(member, c))); },
          .in_range =
              [member, values](const Config& c) {
                return std::find(values.begin(), values.end(), read(member, c)) != values.end();
              }};
}

Key operational(Key key) {
  key.operational = true;
  return key;
}

// How a run is looked after: how often, how long, how much is kept.
std::vector<Key> operational_keys() {
  constexpr std::array kGraphUses = {CudaGraph::automatic, CudaGraph::on, CudaGraph::off};
  using I = std::int64_t;
  constexpr I kSteps = 1'000'000'000;
  constexpr double kDay = 86400;
  return {
      operational(choice(
          "train.cuda_graph", +[](Config& c) -> CudaGraph& { return c.train.cuda_graph; }, kGraphUses)),
      operational(integer(
          "train.epochs", [](Config& c) -> I& { return c.train.epochs; }, 0, kSteps)),
      operational(boolean("train.stop_on_divergence", [](Config& c) -> bool& { return c.train.stop_on_divergence; })),
      operational(integer(
          "train.log_every", [](Config& c) -> I& { return c.train.log_every; }, 1, kSteps)),
      operational(integer(
          "train.eval_every", [](Config& c) -> I& { return c.train.eval_every; }, 0, kSteps)),
      operational(integer(
          "train.eval_batches", [](Config& c) -> I& { return c.train.eval_batches; }, 1, kSteps)),
      operational(integer(
          "train.save_every", [](Config& c) -> I& { return c.train.save_every; }, 0, kSteps)),
      operational(integer(
          "train.keep_checkpoints", [](Config& c) -> I& { return c.train.keep_checkpoints; }, 1, 1'000'000)),
      operational(integer(
          "train.prefetch_batches", [](Config& c) -> I& { return c.train.prefetch_batches; }, 0, 1024)),
      operational(real(
          "train.loader_timeout_s", [](Config& c) -> double& { return c.train.loader_timeout_s; }, 1e-3, kDay)),
      operational(real(
          "train.hang_timeout_s", [](Config& c) -> double& { return c.train.hang_timeout_s; }, 0, kDay)),
  };
}

// What a run computes.
std::vector<Key> make_keys() {
  using I = std::int64_t;
  constexpr std::array phis = {Phi::avg, Phi::mlp};
  constexpr std::array gates = {GateActivation::softmax, GateActivation::sigmoid};
  constexpr std::array orders = {DataOrder::sequential, DataOrder::random_crops, DataOrder::shuffled};
  constexpr std::array precisions = {Precision::fp64, Precision::fp32, Precision::bf16};
  constexpr std::string_view kTextRule = "must be text, not empty, on one line";
  return {
      text(
          "model.name", [](Config& c) -> std::string& { return c.model.name; }, kTextRule),
      integer(
          "model.dim", [](Config& c) -> I& { return c.model.dim; }, 1, 131072),
      integer(
          "model.n_layers", [](Config& c) -> I& { return c.model.n_layers; }, 1, 1024),
      integer(
          "model.n_heads", [](Config& c) -> I& { return c.model.n_heads; }, 1, 1024),
      integer(
          "model.n_kv_groups", [](Config& c) -> I& { return c.model.n_kv_groups; }, 1, 1024),
      width(
          "model.d_k", [](Config& c) -> I& { return c.model.d_k; }, " (RoPE rotates pairs, kernels load 8 at a time)"),
      width(
          "model.d_v", [](Config& c) -> I& { return c.model.d_v; }, ""),
      integer(
          "model.vocab", [](Config& c) -> I& { return c.model.vocab; }, 256, 1 << 24),  // bytes are the tokens
      real(
          "model.rope_base", [](Config& c) -> double& { return c.model.rope_base; }, 1.0, 1e12),

      integer(
          "nsa.l", [](Config& c) -> I& { return c.model.nsa.l; }, 1, kMostTokens),
      integer(
          "nsa.d", [](Config& c) -> I& { return c.model.nsa.d; }, 1, kMostTokens),
      integer(
          "nsa.l_sel", [](Config& c) -> I& { return c.model.nsa.l_sel; }, 1, kMostTokens),
      integer(
          "nsa.n_sel", [](Config& c) -> I& { return c.model.nsa.n_sel; }, 3, kMostBlocks),  // three blocks are forced
      integer(
          "nsa.w", [](Config& c) -> I& { return c.model.nsa.w; }, 1, kMostTokens),
      choice(
          "nsa.phi", +[](Config& c) -> Phi& { return c.model.phi; }, phis),
      choice(
          "nsa.gate", +[](Config& c) -> GateActivation& { return c.model.gate; }, gates),
      real(
          "nsa.gate_tau", [](Config& c) -> double& { return c.model.gate_tau; }, 1e-3, 1e3),

      choice(
          "train.precision", +[](Config& c) -> Precision& { return c.train.precision; }, precisions),
      boolean("train.master_weights", [](Config& c) -> bool& { return c.train.master_weights; }),
      integer(
          "train.steps", [](Config& c) -> I& { return c.train.steps; }, 1, 1'000'000'000),
      integer(
          "train.seq_len", [](Config& c) -> I& { return c.train.seq_len; }, 1, kMostTokens),
      integer(
          "train.batch_size", [](Config& c) -> I& { return c.train.batch_size; }, 1, 65536),
      integer(
          "train.accumulate_grad_batches", [](Config& c) -> I& { return c.train.accumulate_grad_batches; }, 1, 65536),
      integer(
          "train.warmup_steps", [](Config& c) -> I& { return c.train.warmup_steps; }, 0, 1'000'000'000),
      real(
          "train.lr", [](Config& c) -> double& { return c.train.lr; }, 1e-12, 1.0),
      real(
          "train.lr_min", [](Config& c) -> double& { return c.train.lr_min; }, 0.0, 1.0),
      real(
          "train.weight_decay", [](Config& c) -> double& { return c.train.weight_decay; }, 0.0, 1.0),
      real(
          "train.grad_clip", [](Config& c) -> double& { return c.train.grad_clip; }, 1e-6, 1e6),
      number<std::uint64_t>(
          "train.seed", [](Config& c) -> std::uint64_t& { return c.train.seed; }, 0,
          std::numeric_limits<std::uint64_t>::max(), "an integer"),
      boolean("train.gradient_checkpointing", [](Config& c) -> bool& { return c.train.gradient_checkpointing; }),
      boolean("train.deterministic", [](Config& c) -> bool& { return c.train.deterministic; }),
      text(
          "train.data", [](Config& c) -> std::string& { return c.train.data; }, kTextRule),
      choice(
          "train.order", +[](Config& c) -> DataOrder& { return c.train.order; }, orders),
      boolean("train.packed", [](Config& c) -> bool& { return c.train.packed; }),
      real(
          "train.validation_share", [](Config& c) -> double& { return c.train.validation_share; }, 0.0, 0.5),
      boolean("train.skip_bad_lines", [](Config& c) -> bool& { return c.train.skip_bad_lines; }),
  };
}

}  // namespace

std::span<const Key> config_keys() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> all = make_keys();
    for (auto& key : operational_keys()) all.push_back(std::move(key));
    return all;
  }();
  return keys;
}

std::vector<Problem> config_problems(const Config& config, KeySet broken) {
  std::vector<Problem> problems;
  for (const auto& key : config_keys()) {
    if (broken.contains(key.name) || key.in_range(config)) continue;
    problems.push_back({{std::string(key.name), key.format(config), key.allowed, ""}, {key.name}});
    broken.emplace(key.name);
  }
  // One line a rule: the key to blame, the key that it clashes with, and what would be right. Ranges hold by now for
  // every key that is looked at, so nothing divides by zero.
  const auto clash = [&](std::string_view key, std::string_view other, auto bad, std::string_view allowed) {
    if (broken.contains(key) || broken.contains(other) || !bad()) return;
    const auto value = [&](std::string_view name) {
      const auto keys = config_keys();
      return std::find_if(keys.begin(), keys.end(), [&](const Key& k) { return k.name == name; })->format(config);
    };
    problems.push_back(
        {{std::string(key), value(key), fmt::format("{} {} ({})", allowed, other, value(other)), ""}, {key, other}});
  };
  const ModelConfig& model = config.model;
  const TrainConfig& train = config.train;
  const Geometry& g = model.nsa;
  clash(
      "nsa.d", "nsa.l", [&] { return g.l % g.d != 0; }, "must divide");
  clash(
      "nsa.d", "nsa.l_sel", [&] { return g.l_sel % g.d != 0; }, "must divide");
  clash(
      "nsa.l", "nsa.l_sel", [&] { return g.l > g.l_sel; }, "must be at most");
  clash(
      "model.n_heads", "model.n_kv_groups", [&] { return model.n_heads % model.n_kv_groups != 0; },
      "must be a multiple of");
  clash(
      "train.lr_min", "train.lr", [&] { return train.lr_min > train.lr; }, "must be at most");
  clash(
      "train.warmup_steps", "train.steps", [&] { return train.warmup_steps > train.steps; }, "must be at most");
  clash(
      "train.epochs", "train.order", [&] { return train.epochs != 1 && train.order == DataOrder::random_crops; },
      "must be 1 with");
  clash(
      "train.batch_size", "train.packed", [&] { return train.packed && train.batch_size != 1; }, "must be 1 with");
  clash(
      "train.cuda_graph", "train.packed", [&] { return train.cuda_graph == CudaGraph::on && train.packed; },
      "must be auto or false with");
  clash(
      "train.cuda_graph", "train.precision",
      [&] { return train.cuda_graph == CudaGraph::on && train.precision == Precision::fp64; },
      "must be auto or false with");
  clash(
      "train.validation_share", "train.eval_every", [&] { return train.eval_every > 0 && train.validation_share <= 0; },
      "must be above 0 with");
  return problems;
}

}  // namespace nsa
