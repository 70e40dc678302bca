#include "nsa/flags.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace flags_test {

using nsa::Environment;
using nsa::FlagInvalid;
using nsa::ForcedBranch;
using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const Environment& environment) {
  try {
    (void)nsa::resolve(environment);
  } catch (const FlagInvalid& invalid) {
    return invalid.what();
  }
  return "";
}

TEST(Flags, NothingSetIsTheDefault) {
  const auto flags = nsa::resolve({});
  EXPECT_FALSE(flags.fa2_all || flags.fa2_win || flags.fa2_cmp);
  EXPECT_TRUE(flags.sel_pack);
  EXPECT_FALSE(flags.sel_mask);
  EXPECT_EQ(flags.fa2_min_len_win, 16);
  EXPECT_EQ(flags.forced_branch, ForcedBranch::none);
  EXPECT_EQ(flags.rope_scale, 1.0);
  EXPECT_EQ(flags.origin.size(), nsa::flatten(flags).size());  // one for every field
  for (const auto& [field, value] : nsa::flatten(flags)) EXPECT_TRUE(flags.origin.contains(field)) << field;
  for (const auto& [field, origin] : flags.origin) {
    EXPECT_EQ(origin.text, "default") << field;
    EXPECT_FALSE(origin.is_variable) << field;
  }
}

// The rule of the FlashAttention-2 flags, written out: NSA_USE_FA2, NSA_USE_FA2_WIN, NSA_USE_FA2_CMP ("" is unset),
// then all, win, cmp and where win and cmp come from.
struct Fa2Case {
  const char *use, *win, *cmp;
  bool all, win_on, cmp_on;
  const char *win_origin, *cmp_origin;
};
constexpr const char *kNone = "default", *kUse0 = "NSA_USE_FA2=0", *kUse1 = "NSA_USE_FA2=1";
constexpr const char *kWin0 = "NSA_USE_FA2_WIN=0", *kWin1 = "NSA_USE_FA2_WIN=1";
constexpr const char *kCmp0 = "NSA_USE_FA2_CMP=0", *kCmp1 = "NSA_USE_FA2_CMP=1";
constexpr Fa2Case kFa2Cases[] = {
    {"", "", "", false, false, false, kNone, kNone},    {"", "", "0", false, false, false, kNone, kCmp0},
    {"", "", "1", false, false, true, kNone, kCmp1},    {"", "0", "", false, false, false, kWin0, kNone},
    {"", "0", "0", false, false, false, kWin0, kCmp0},  {"", "0", "1", false, false, true, kWin0, kCmp1},
    {"", "1", "", false, true, false, kWin1, kNone},    {"", "1", "0", false, true, false, kWin1, kCmp0},
    {"", "1", "1", false, true, true, kWin1, kCmp1},    {"0", "", "", false, false, false, kUse0, kUse0},
    {"0", "", "0", false, false, false, kUse0, kUse0},  {"0", "", "1", false, false, false, kUse0, kUse0},
    {"0", "0", "", false, false, false, kUse0, kUse0},  {"0", "0", "0", false, false, false, kUse0, kUse0},
    {"0", "0", "1", false, false, false, kUse0, kUse0}, {"0", "1", "", false, false, false, kUse0, kUse0},
    {"0", "1", "0", false, false, false, kUse0, kUse0}, {"0", "1", "1", false, false, false, kUse0, kUse0},
    {"1", "", "", true, true, true, kUse1, kUse1},      {"1", "", "0", true, true, false, kUse1, kCmp0},
    {"1", "", "1", true, true, true, kUse1, kCmp1},     {"1", "0", "", true, false, true, kWin0, kUse1},
    {"1", "0", "0", true, false, false, kWin0, kCmp0},  {"1", "0", "1", true, false, true, kWin0, kCmp1},
    {"1", "1", "", true, true, true, kWin1, kUse1},     {"1", "1", "0", true, true, false, kWin1, kCmp0},
    {"1", "1", "1", true, true, true, kWin1, kCmp1},
};

void expect_origin(const nsa::FlagOrigin& origin, std::string_view text, const std::string& setting) {
  EXPECT_EQ(origin.text, text) << setting;
  EXPECT_EQ(origin.is_variable, text != kNone) << setting;
}

TEST(Flags, FlashAttentionRuleInAll27Settings) {
  std::set<std::string> settings;
  for (const auto& c : kFa2Cases) {
    Environment environment;
    if (*c.use) environment["NSA_USE_FA2"] = c.use;
    if (*c.win) environment["NSA_USE_FA2_WIN"] = c.win;
    if (*c.cmp) environment["NSA_USE_FA2_CMP"] = c.cmp;
    const std::string name = std::string("USE=") + c.use + " WIN=" + c.win + " CMP=" + c.cmp;
    settings.insert(name);
    const auto flags = nsa::resolve(environment);
    EXPECT_EQ(flags.fa2_all, c.all) << name;
    EXPECT_EQ(flags.fa2_win, c.win_on) << name;
    EXPECT_EQ(flags.fa2_cmp, c.cmp_on) << name;
    expect_origin(flags.origin.at("fa2_win"), c.win_origin, name);
    expect_origin(flags.origin.at("fa2_cmp"), c.cmp_origin, name);
  }
  EXPECT_EQ(settings.size(), 27U);
}

TEST(Flags, BooleansInEverySpelling) {
  for (const char* on : {"1", "true", "True", "YES", "on", "oN"})
    EXPECT_TRUE(nsa::resolve({{"NSA_STRICT_ASSERTS", on}}).strict_asserts) << on;
  for (const char* off : {"0", "false", "FALSE", "No", "off"})
    EXPECT_FALSE(nsa::resolve({{"NSA_USE_FA2", off}, {"NSA_USE_FA2_WIN", "1"}}).fa2_win) << off;
  for (const char* bad : {"", " ", "2", "-1", "yep", "1 ", "01", "none"})
    EXPECT_THAT(refusal({{"NSA_STRICT_ASSERTS", bad}}),
                AllOf(HasSubstr(std::string("NSA_STRICT_ASSERTS=") + bad + ": allowed: 0/1"), HasSubstr("off/on")))
        << bad;
}

TEST(Flags, EveryPlainFlagReachesItsField) {
  const auto flags = nsa::resolve({{"NSA_FA2_MIN_LEN_WIN", "512"},
                                   {"NSA_FA2_MIN_LEN_CMP", "-1"},
                                   {"NSA_FA2_FORCE_VARLEN", "1"},
                                   {"NSA_FORCE_PARITY", "1"},
                                   {"NSA_TRAIN_SAFE_PACK", "1"},
                                   {"NSA_STRICT_ASSERTS", "1"},
                                   {"NSA_STOPGRAD_GATES", "1"},
                                   {"NSA_FORCE_BRANCH", "WIN"},
                                   {"NSA_ROPE_SCALE", "0.25"},
                                   {"NSA_NVTX", "1"},
                                   {"NSA_DETECT_ANOMALY", "1"}});
  EXPECT_EQ(flags.fa2_min_len_win, 512);
  EXPECT_EQ(flags.fa2_min_len_cmp, -1);
  EXPECT_TRUE(flags.fa2_force_varlen && flags.force_parity && flags.train_safe_pack && flags.strict_asserts);
  EXPECT_TRUE(flags.stopgrad_gates && flags.nvtx && flags.detect_anomaly);
  EXPECT_EQ(flags.forced_branch, ForcedBranch::win);
  EXPECT_EQ(flags.rope_scale, 0.25);
  EXPECT_EQ(flags.origin.at("rope_scale").text, "NSA_ROPE_SCALE=0.25");
  EXPECT_EQ(flags.origin.at("uniform_gate").text, "default");
  EXPECT_TRUE(nsa::resolve({{"NSA_FA2_FORCE_DENSE", "1"}}).fa2_force_dense);
  EXPECT_TRUE(nsa::resolve({{"NSA_FORCE_UNIFORM_GATE", "1"}}).uniform_gate);
  EXPECT_EQ(nsa::resolve({{"NSA_FORCE_BRANCH", "none"}, {"NSA_FORCE_UNIFORM_GATE", "1"}}).forced_branch,
            ForcedBranch::none);
}

TEST(Flags, EveryFlagOfTheTableIsRead) {
  for (const auto& flag : nsa::flag_table())
    EXPECT_THAT(refusal({{std::string(flag.name), "no such value"}}),
                HasSubstr(std::string(flag.name) + "=no such value: allowed: " + std::string(flag.allowed)));
}

TEST(Flags, SelectionPackAndMask) {
  EXPECT_TRUE(nsa::resolve({{"NSA_FORCE_SEL_MASK", "1"}}).sel_mask);
  EXPECT_TRUE(nsa::resolve({{"NSA_FORCE_SEL_MASK", "1"}, {"NSA_USE_SEL_PACK", "1"}}).sel_mask);
  EXPECT_TRUE(nsa::resolve({{"NSA_USE_SEL_MASK", "1"}, {"NSA_USE_SEL_PACK", "0"}}).sel_mask);
  EXPECT_TRUE(nsa::resolve({{"NSA_FORCE_SEL_MASK", "1"}, {"NSA_USE_SEL_PACK", "0"}}).sel_mask);
  const auto both = nsa::resolve({{"NSA_USE_SEL_MASK", "1"}});
  EXPECT_FALSE(both.sel_mask);
  EXPECT_THAT(both.origin.at("sel_mask").text, HasSubstr("only with NSA_USE_SEL_PACK=0"));
  EXPECT_FALSE(both.origin.at("sel_mask").is_variable) << "it was asked for, and does not count";
  const auto off = nsa::resolve({{"NSA_FORCE_SEL_MASK", "0"}}).origin.at("sel_mask");
  EXPECT_EQ(off.text, "NSA_FORCE_SEL_MASK=0");
  EXPECT_TRUE(off.is_variable);
  EXPECT_THAT(refusal({{"NSA_USE_SEL_PACK", "0"}}),
              AllOf(HasSubstr("NSA_USE_SEL_PACK=0"), HasSubstr("NSA_FORCE_SEL_MASK=1")));
  EXPECT_NE(refusal({{"NSA_USE_SEL_PACK", "off"}, {"NSA_USE_SEL_MASK", "0"}}), "");
}

TEST(Flags, NumbersOutsideTheirRange) {
  for (const char* bad : {"", "x", "1.5", "16 ", "-2", "1048577", "99999999999999999999", "+5"})
    EXPECT_THAT(refusal({{"NSA_FA2_MIN_LEN_CMP", bad}}), HasSubstr("NSA_FA2_MIN_LEN_CMP=")) << bad;
  for (const char* bad : {"", "0", "-1", "nan", "inf", "1e9", "one"})
    EXPECT_THAT(refusal({{"NSA_ROPE_SCALE", bad}}), HasSubstr("a number from 1e-06 to 1e+06")) << bad;
  EXPECT_THAT(refusal({{"NSA_FORCE_BRANCH", "window"}}), HasSubstr("none, cmp, sel, win"));
  EXPECT_EQ(nsa::resolve({{"NSA_FA2_MIN_LEN_WIN", "0"}}).fa2_min_len_win, 0);
}

TEST(Flags, ContradictionsAreRefusedTogetherWithEverythingElse) {
  const auto text = refusal({{"NSA_FA2_FORCE_DENSE", "1"},
                             {"NSA_FA2_FORCE_VARLEN", "on"},
                             {"NSA_FORCE_BRANCH", "sel"},
                             {"NSA_FORCE_UNIFORM_GATE", "1"},
                             {"NSA_USE_FA2", "maybe"}});
  EXPECT_THAT(text, HasSubstr("NSA_FA2_FORCE_DENSE=1 contradicts NSA_FA2_FORCE_VARLEN=on"));
  EXPECT_THAT(text, HasSubstr("NSA_FORCE_BRANCH=sel contradicts NSA_FORCE_UNIFORM_GATE=1"));
  EXPECT_THAT(text, HasSubstr("NSA_USE_FA2=maybe"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(Flags, UnknownNamesGetTheNearest) {
  const auto one = [](const char* name) {
    const auto unknown = nsa::unknown_flags({{name, "1"}});
    EXPECT_EQ(unknown.size(), 1U) << name;
    return unknown.empty() ? nsa::UnknownFlag{} : unknown[0];
  };
  EXPECT_EQ(one("NSA_USE_FA3").nearest, "NSA_USE_FA2");
  EXPECT_EQ(one("NSA_USE_FA2_WINDOW").nearest, "NSA_USE_FA2_WIN");
  EXPECT_EQ(one("NSA_FA2_WIN").nearest, "NSA_USE_FA2_WIN");
  EXPECT_EQ(one("NSA_STRICT_ASSERT").nearest, "NSA_STRICT_ASSERTS");
  EXPECT_EQ(one("NSA_FORCE_SEL_MAKS").nearest, "NSA_FORCE_SEL_MASK");
  EXPECT_EQ(one("NSA_WHOLLY_OTHER_THING").nearest, "");
  EXPECT_EQ(one("NSA_").nearest, "");
  EXPECT_EQ(one("NSA_USE_FA3").remark, "");
}

TEST(Flags, RetiredNamesAreNoTypos) {
  for (const char* name :
       {"NSA_SEL_RANGES_V2", "NSA_SEL_RANGES_V2_MIN_S", "NSA_FWE_Q", "NSA_SEL_TRITON_MIN_L", "NSA_TRITON_SEL_FORCE",
        "NSA_USE_TRITON_SEL", "NSA_FSDP_SHARDING", "NSA_DDP_BUCKET_MB", "NSA_PREFILL_BATCHED", "NSA_WATCH_HALT",
        "NSA_TEST_SEED", "NSA_USE_SEL_VARLEN", "NSA_WIN_FORCE_DENSE", "NSA_SDPA_NO_FLASH", "NSA_DATALOADER_WORKERS",
        "NSA_TRAIN_STEPS", "NSA_VERIFY_EQ9_MAPPING"}) {
    const auto unknown = nsa::unknown_flags({{name, "1"}});
    ASSERT_EQ(unknown.size(), 1U) << name;
    EXPECT_EQ(unknown[0].remark, "retired, no effect") << name;
    EXPECT_EQ(unknown[0].nearest, "") << name;
  }
}

TEST(Flags, KnownNamesAreNotUnknown) {
  Environment all;
  for (const auto& flag : nsa::flag_table()) all[std::string(flag.name)] = "1";
  EXPECT_TRUE(nsa::unknown_flags(all).empty());
  EXPECT_TRUE(nsa::unknown_flags({{"PATH", "/bin"}}).empty());
  EXPECT_TRUE(nsa::unknown_flags({{"NSA_ADAPTER_SOURCE", "/checkout"}}).empty());  // an adapter reads it
}

TEST(Flags, TheEnvironmentIsReadOnlyForItsPrefix) {
  ASSERT_EQ(setenv("NSA_STRICT_ASSERTS", "a=b", 1), 0);
  ASSERT_EQ(setenv("XNSA_NVTX", "1", 1), 0);
  const auto environment = nsa::read_environment();
  unsetenv("NSA_STRICT_ASSERTS");
  unsetenv("XNSA_NVTX");
  ASSERT_TRUE(environment.contains("NSA_STRICT_ASSERTS"));
  EXPECT_EQ(environment.at("NSA_STRICT_ASSERTS"), "a=b");
  for (const auto& [name, value] : environment) EXPECT_TRUE(name.starts_with("NSA_")) << name;
}

}  // namespace flags_test
