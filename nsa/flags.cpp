#include "nsa/flags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <optional>

#include "base/parse_number.hpp"

namespace nsa {

namespace {

std::string lower(std::string text) {
  for (char& letter : text) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return text;
}

std::optional<bool> parse_bool(const std::string& text) {
  static const std::array<std::string_view, 4> off = {"0", "false", "no", "off"}, on = {"1", "true", "yes", "on"};
  const std::string word = lower(text);
  if (std::find(on.begin(), on.end(), word) != on.end()) return true;
  if (std::find(off.begin(), off.end(), word) != off.end()) return false;
  return std::nullopt;
}

template <typename T>
std::optional<T> parse_number(const std::string& text, T minimum, T maximum) {
  const auto value = base::parse_number<T>(text);
  return value && *value >= minimum && *value <= maximum ? value : std::nullopt;  // written so that NaN fails
}

std::optional<ForcedBranch> parse_branch(const std::string& text) {
  const std::string word = lower(text);
  if (word == "none") return ForcedBranch::none;
  if (word == "cmp") return ForcedBranch::cmp;
  if (word == "sel") return ForcedBranch::sel;
  if (word == "win") return ForcedBranch::win;
  return std::nullopt;
}

// Looks flags up in an environment and keeps what is wrong, so that one throw names every problem.
class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  // The parsed value; nothing when the flag is unset or its value is bad.
  template <typename Parse>
  auto get(std::string_view name, Parse parse) -> decltype(parse(std::string())) {
    const auto set = environment_.find(std::string(name));
    if (set == environment_.end()) return std::nullopt;
    const auto value = parse(set->second);
    if (!value) problem(fmt::format("{}: allowed: {}", setting(name), spec(name).allowed));
    return value;
  }
  std::optional<bool> boolean(std::string_view name) { return get(name, parse_bool); }

  // "NSA_USE_FA2=1"
  [[nodiscard]] std::string setting(std::string_view name) const {
    const auto set = environment_.find(std::string(name));
    return fmt::format("{}={}", name, set == environment_.end() ? "" : set->second);
  }

  // Of a value that this variable gave.
  [[nodiscard]] FlagOrigin origin(std::string_view name) const { return {setting(name), true}; }

  void problem(std::string text) { problems_.push_back(std::move(text)); }
  void finish() const {
    if (!problems_.empty()) throw FlagInvalid(fmt::format("{}", fmt::join(problems_, "\n")));
  }

 private:
  static const FlagSpec& spec(std::string_view name) {
    const auto table = flag_table();
    const auto found =
        std::find_if(table.begin(), table.end(), [&](const FlagSpec& flag) { return flag.name == name; });
    if (found == table.end()) throw std::logic_error(fmt::format("flag {} is not in the table", name));
    return *found;
  }

  const Environment& environment_;
  std::vector<std::string> problems_;
};

// The rule of the three FlashAttention-2 flags: an explicit 0 of NSA_USE_FA2 wins over everything, an explicit value of
// a branch's own flag over NSA_USE_FA2=1; nothing set means off.
void resolve_fa2(Reader& reader, EffectiveFlags& flags) {
  const auto use = reader.boolean("NSA_USE_FA2");
  flags.fa2_all = use.value_or(false);
  flags.origin["fa2_all"] = use ? reader.origin("NSA_USE_FA2") : FlagOrigin{};
  const auto branch = [&](bool& value, const std::string& field, std::string_view name) {
    const auto own = reader.boolean(name);
    const bool disabled = use.has_value() && !*use;
    value = !disabled && own.value_or(flags.fa2_all);
    if (own && !disabled)
      flags.origin[field] = reader.origin(name);
    else
      flags.origin[field] = flags.origin["fa2_all"];
  };
  branch(flags.fa2_win, "fa2_win", "NSA_USE_FA2_WIN");
  branch(flags.fa2_cmp, "fa2_cmp", "NSA_USE_FA2_CMP");
}

// Gathered or masked: NSA_FORCE_SEL_MASK always means masked, NSA_USE_SEL_MASK only when gathering is switched off.
void resolve_selection(Reader& reader, EffectiveFlags& flags) {
  const auto pack = reader.boolean("NSA_USE_SEL_PACK"), use_mask = reader.boolean("NSA_USE_SEL_MASK"),
             force_mask = reader.boolean("NSA_FORCE_SEL_MASK");
  flags.sel_pack = pack.value_or(true);
  flags.origin["sel_pack"] = pack ? reader.origin("NSA_USE_SEL_PACK") : FlagOrigin{};
  flags.sel_mask = force_mask.value_or(false) || (use_mask.value_or(false) && !flags.sel_pack);
  const bool idle = use_mask.value_or(false) && !flags.sel_mask;  // asked for, but packing is on
  flags.origin["sel_mask"] = force_mask.value_or(false) ? reader.origin("NSA_FORCE_SEL_MASK")
                             : flags.sel_mask           ? reader.origin("NSA_USE_SEL_MASK")
                             : idle       ? FlagOrigin{"default (NSA_USE_SEL_MASK counts only with NSA_USE_SEL_PACK=0)"}
                             : force_mask ? reader.origin("NSA_FORCE_SEL_MASK")
                             : use_mask   ? reader.origin("NSA_USE_SEL_MASK")
                                          : FlagOrigin{};
  if (!flags.sel_pack && !flags.sel_mask)
    reader.problem(
        fmt::format("{} leaves the selected branch without a way: set NSA_USE_SEL_MASK=1 or NSA_FORCE_SEL_MASK=1, "
                    "or leave NSA_USE_SEL_PACK unset",
                    reader.setting("NSA_USE_SEL_PACK")));
}

}  // namespace

void wait_without_spinning(char* const* argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  if (setenv("OMP_WAIT_POLICY", "passive", 1) == 0) execv("/proc/self/exe", argv);
}

Environment read_environment() {
  Environment found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (text.starts_with("NSA_") && equals != std::string_view::npos)
      found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

EffectiveFlags resolve(const Environment& environment) {
  EffectiveFlags flags;
  Reader reader(environment);
  // One flag, one field: the value and where it comes from.
  const auto plain = [&](auto& field, const std::string& field_name, std::string_view flag, auto parse) {
    const auto value = reader.get(flag, parse);
    if (value) field = *value;
    flags.origin[field_name] = value ? reader.origin(flag) : FlagOrigin{};
  };
  const auto length = [](const std::string& text) { return parse_number<std::int64_t>(text, -1, 1 << 20); };
  const auto scale = [](const std::string& text) { return parse_number<double>(text, 1e-6, 1e6); };

  resolve_fa2(reader, flags);
  plain(flags.fa2_min_len_win, "fa2_min_len_win", "NSA_FA2_MIN_LEN_WIN", length);
  plain(flags.fa2_min_len_cmp, "fa2_min_len_cmp", "NSA_FA2_MIN_LEN_CMP", length);
  plain(flags.fa2_force_dense, "fa2_force_dense", "NSA_FA2_FORCE_DENSE", parse_bool);
  plain(flags.fa2_force_varlen, "fa2_force_varlen", "NSA_FA2_FORCE_VARLEN", parse_bool);
  plain(flags.use_cuda, "use_cuda", "NSA_USE_CUDA", parse_bool);
  plain(flags.graph_calls, "graph_calls", "NSA_GRAPH_CALLS", parse_bool);
  plain(flags.fused_decode, "fused_decode", "NSA_FUSED_DECODE", parse_bool);
  plain(flags.fused_norm, "fused_norm", "NSA_FUSED_NORM", parse_bool);
  plain(flags.fused_project, "fused_project", "NSA_FUSED_PROJECT", parse_bool);
  plain(flags.fused_mlp, "fused_mlp", "NSA_FUSED_MLP", parse_bool);
  plain(flags.fused_silu, "fused_silu", "NSA_FUSED_SILU", parse_bool);
  plain(flags.fused_embedding, "fused_embedding", "NSA_FUSED_EMBEDDING", parse_bool);
  plain(flags.fused_update, "fused_update", "NSA_FUSED_UPDATE", parse_bool);
  resolve_selection(reader, flags);
  plain(flags.force_parity, "force_parity", "NSA_FORCE_PARITY", parse_bool);
  plain(flags.train_safe_pack, "train_safe_pack", "NSA_TRAIN_SAFE_PACK", parse_bool);
  plain(flags.strict_asserts, "strict_asserts", "NSA_STRICT_ASSERTS", parse_bool);
  plain(flags.uniform_gate, "uniform_gate", "NSA_FORCE_UNIFORM_GATE", parse_bool);
  plain(flags.stopgrad_gates, "stopgrad_gates", "NSA_STOPGRAD_GATES", parse_bool);
  plain(flags.forced_branch, "forced_branch", "NSA_FORCE_BRANCH", parse_branch);
  plain(flags.rope_scale, "rope_scale", "NSA_ROPE_SCALE", scale);
  plain(flags.nvtx, "nvtx", "NSA_NVTX", parse_bool);
  plain(flags.detect_anomaly, "detect_anomaly", "NSA_DETECT_ANOMALY", parse_bool);

  if (flags.fa2_force_dense && flags.fa2_force_varlen)
    reader.problem(fmt::format("{} contradicts {}: the window can take one entry point",
                               reader.setting("NSA_FA2_FORCE_DENSE"), reader.setting("NSA_FA2_FORCE_VARLEN")));
  if (flags.forced_branch != ForcedBranch::none && flags.uniform_gate)
    reader.problem(fmt::format("{} contradicts {}: one branch alone, or 1/3 of each",
                               reader.setting("NSA_FORCE_BRANCH"), reader.setting("NSA_FORCE_UNIFORM_GATE")));
  reader.finish();
  return flags;
}

FlagOrigin origin_of(const EffectiveFlags& flags, const std::string& field) {
  const auto found = flags.origin.find(field);
  return found == flags.origin.end() ? FlagOrigin{} : found->second;
}

std::string flag_against(const EffectiveFlags& flags, bool on, const std::string& field) {
  const auto origin = [&](const std::string& name) {
    const auto known = flags.origin.find(name);
    return known == flags.origin.end() ? name : known->second.text;
  };
  if (!on) return origin(field);
  if (!flags.use_cuda) return origin("use_cuda");
  return flags.force_parity ? origin("force_parity") : "";
}

std::map<std::string, std::string> flatten(const EffectiveFlags& flags) {
  static const std::map<ForcedBranch, std::string> branches = {
      {ForcedBranch::none, "none"}, {ForcedBranch::cmp, "cmp"}, {ForcedBranch::sel, "sel"}, {ForcedBranch::win, "win"}};
  return {{"fa2_all", fmt::to_string(flags.fa2_all)},
          {"fa2_win", fmt::to_string(flags.fa2_win)},
          {"fa2_cmp", fmt::to_string(flags.fa2_cmp)},
          {"fa2_min_len_win", fmt::to_string(flags.fa2_min_len_win)},
          {"fa2_min_len_cmp", fmt::to_string(flags.fa2_min_len_cmp)},
          {"fa2_force_dense", fmt::to_string(flags.fa2_force_dense)},
          {"fa2_force_varlen", fmt::to_string(flags.fa2_force_varlen)},
          {"use_cuda", fmt::to_string(flags.use_cuda)},
          {"graph_calls", fmt::to_string(flags.graph_calls)},
          {"fused_decode", fmt::to_string(flags.fused_decode)},
          {"fused_norm", fmt::to_string(flags.fused_norm)},
          {"fused_project", fmt::to_string(flags.fused_project)},
          {"fused_mlp", fmt::to_string(flags.fused_mlp)},
          {"fused_silu", fmt::to_string(flags.fused_silu)},
          {"fused_embedding", fmt::to_string(flags.fused_embedding)},
          {"fused_update", fmt::to_string(flags.fused_update)},
          {"sel_pack", fmt::to_string(flags.sel_pack)},
          {"sel_mask", fmt::to_string(flags.sel_mask)},
          {"force_parity", fmt::to_string(flags.force_parity)},
          {"train_safe_pack", fmt::to_string(flags.train_safe_pack)},
          {"strict_asserts", fmt::to_string(flags.strict_asserts)},
          {"uniform_gate", fmt::to_string(flags.uniform_gate)},
          {"stopgrad_gates", fmt::to_string(flags.stopgrad_gates)},
          {"forced_branch", branches.at(flags.forced_branch)},
          {"rope_scale", fmt::to_string(flags.rope_scale)},
          {"nvtx", fmt::to_string(flags.nvtx)},
          {"detect_anomaly", fmt::to_string(flags.detect_anomaly)}};
}

}  // namespace nsa
