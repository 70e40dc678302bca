#include "harness/settings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "harness/tests/support/fake_run.hpp"

namespace {

using harness::Settings;
using harness::SettingSpec;
using harness::SettingType;
using harness::UsageError;
using testing::ElementsAre;
using testing::HasSubstr;

SettingSpec spec(const char* key, SettingType type, const char* value) {
  SettingSpec s;
  s.key = key;
  s.type = type;
  s.default_value = value;
  s.meaning = "what it is for";
  return s;
}

Settings sample() {
  SettingSpec bounded = spec("model.layers", SettingType::integer, "12");
  bounded.minimum = 1;
  bounded.maximum = 100;
  SettingSpec choice = spec("model.dtype", SettingType::text, "bf16");
  choice.one_of = {"fp32", "bf16"};
  return Settings(
      {bounded, choice, spec("rate", SettingType::real, "0.5"), spec("strict", SettingType::boolean, "false"),
       spec("name", SettingType::text, ""), spec("sweep.lengths", SettingType::integer_list, "[128, 512]"),
       spec("sweep.scales", SettingType::real_list, "[]"), spec("sweep.names", SettingType::text_list, "[a, 'b, c']")});
}

std::string error_of_settings(const std::function<void()>& act) {
  try {
    act();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Settings, DefaultsOfEveryType) {
  const Settings s = sample();
  EXPECT_EQ(s.integer("model.layers"), 12);
  EXPECT_DOUBLE_EQ(s.real("rate"), 0.5);
  EXPECT_FALSE(s.boolean("strict"));
  EXPECT_EQ(s.text("name"), "");
  EXPECT_THAT(s.integers("sweep.lengths"), ElementsAre(128, 512));
  EXPECT_TRUE(s.reals("sweep.scales").empty());
  EXPECT_THAT(s.texts("sweep.names"), ElementsAre("a", "b, c"));
  EXPECT_EQ(s.values().at("rate").origin, "default");
}

TEST(Settings, LaterLayersWinAndSayWhereTheyStand) {
  const harness::tests::TempFolder folder;
  const auto file = folder.write("ci.yaml", "# comment\nmodel:\n  layers: 3\nsweep.lengths: [1, 2, 3]\nrate: 1e-3\n");
  Settings s = sample();
  s.load_file(file);
  EXPECT_EQ(s.integer("model.layers"), 3);
  EXPECT_THAT(s.integers("sweep.lengths"), ElementsAre(1, 2, 3));
  EXPECT_DOUBLE_EQ(s.real("rate"), 1e-3);
  EXPECT_EQ(s.values().at("model.layers").origin, file.string() + ":3");
  s.set("model.layers", "4", "--set");
  EXPECT_EQ(s.integer("model.layers"), 4);
  EXPECT_EQ(s.values().at("model.layers").origin, "--set");
}

TEST(Settings, ANumberMayHaveItsPlusAndNothingElse) {
  Settings s = sample();
  s.set("model.layers", "+4", "--set");
  s.set("rate", "+.5", "--set");
  EXPECT_EQ(s.integer("model.layers"), 4);
  EXPECT_EQ(s.real("rate"), 0.5);
  for (const char* bad : {"+", "++4", "+ 4", "4+", "0x4", "4.0"})
    EXPECT_THROW(s.set("model.layers", bad, "--set"), UsageError) << bad;
}

TEST(Settings, AllProblemsOfAFileAtOnceEachWithItsLine) {
  const harness::tests::TempFolder folder;
  const auto file = folder.write("bad.yaml", "model:\n  layer: 3\n  dtype: fp16\nrate: fast\nmodle:\n  a: 1\n  b: 2\n");
  Settings s = sample();
  const std::string text = error_of_settings([&] { s.load_file(file); });
  const std::string at = file.string();
  EXPECT_THAT(text, HasSubstr(at + ":2: unknown key 'model.layer'; did you mean 'model.layers'?"));
  EXPECT_THAT(text, HasSubstr(at + ":3: model.dtype is 'fp16', allowed is one of fp32, bf16"));
  EXPECT_THAT(text, HasSubstr(at + ":4: rate is 'fast', allowed is a number"));
  EXPECT_THAT(text, HasSubstr(at + ":5: unknown key 'modle'"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

TEST(Settings, FilesThatAreNotMappings) {
  const harness::tests::TempFolder folder;
  Settings s = sample();
  EXPECT_THAT(error_of_settings([&] { s.load_file(folder.path() / "none.yaml"); }),
              HasSubstr("no such configuration file"));
  EXPECT_THAT(error_of_settings([&] { s.load_file(folder.path()); }),
              HasSubstr("is a directory, and no configuration file"));
  EXPECT_THAT(error_of_settings([&] { s.load_file("/dev/zero"); }),
              HasSubstr("is no regular file, and no configuration file"));
  const auto broken = folder.write("broken.yaml", "rate: 1\nmodel: [1, 2\n");
  EXPECT_THAT(error_of_settings([&] { s.load_file(broken); }), HasSubstr(broken.string() + ":"));
  const auto list = folder.write("list.yaml", "- 1\n- 2\n");
  EXPECT_THAT(error_of_settings([&] { s.load_file(list); }), HasSubstr("mapping"));
  const auto twice = folder.write("twice.yaml", "rate: 1\nrate: 2\n");
  EXPECT_THAT(error_of_settings([&] { s.load_file(twice); }), HasSubstr(":2: key 'rate' stands twice"));
  const auto map = folder.write("map.yaml", "rate: {a: 1}\n");
  EXPECT_THAT(error_of_settings([&] { s.load_file(map); }), HasSubstr("rate is"));
  s.load_file(folder.write("empty.yaml", "# nothing\n"));
  EXPECT_DOUBLE_EQ(s.real("rate"), 0.5);
}

TEST(Settings, ValuesThatAreRefused) {
  Settings s = sample();
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{{"model.layers", "0"},
                                                                                   {"model.layers", "101"},
                                                                                   {"model.layers", "1.5"},

                                                                                   {"model.layers", ""},
                                                                                   {"model.layers", "0x10"},
                                                                                   {"rate", "nan"},
                                                                                   {"rate", "inf"},
                                                                                   {"rate", "1,5"},
                                                                                   {"strict", "yes"},
                                                                                   {"name", " \xb5"},
                                                                                   {"strict", "1"},
                                                                                   {"sweep.lengths", "[1, x]"},
                                                                                   {"sweep.lengths", "[1"},
                                                                                   {"sweep.lengths", "{a: 1}"},
                                                                                   {"model.dtype", "[bf16]"},
                                                                                   {"model.layers", "[1]"}}) {
    EXPECT_THAT(error_of_settings([&] { s.set(key, value, "--set"); }),
                HasSubstr("--set: " + key + " is '" + value + "'"));
  }
  EXPECT_EQ(s.integer("model.layers"), 12) << "a refused value must not stay";
}

TEST(Settings, CommandLineListsAndTextsAreConvenient) {
  Settings s = sample();
  s.set("sweep.lengths", "1,2,3", "--set");
  EXPECT_THAT(s.integers("sweep.lengths"), ElementsAre(1, 2, 3));
  s.set("sweep.lengths", "7", "--set");
  EXPECT_THAT(s.integers("sweep.lengths"), ElementsAre(7));
  s.set("name", "a: b # c", "--set");
  EXPECT_EQ(s.text("name"), "a: b # c");
}

TEST(Settings, CanonicalTextReadsBackAsItself) {
  for (const std::string text :
       {"plain", "", " padded ", "'quoted'", "\"x\"", "a: b", "two\nlines", "[list]", "~", "true"}) {
    Settings first = sample(), second = sample();
    const harness::tests::TempFolder folder;
    first.load_file(folder.write("t.yaml", "name: " + nlohmann::json(text).dump() + "\n"));
    EXPECT_EQ(first.text("name"), text);
    second.set("name", first.values().at("name").text, "--set");
    EXPECT_EQ(second.text("name"), text);
  }
  Settings first = sample(), second = sample();
  first.set("sweep.names", R"(["a, b", "", "'", "x: y", z])", "--set");
  second.set("sweep.names", first.values().at("sweep.names").text, "--set");
  EXPECT_THAT(second.texts("sweep.names"), ElementsAre("a, b", "", "'", "x: y", "z"));
}

// The command that repeats a case works in any folder.
TEST(Settings, APathBecomesAnAbsoluteOne) {
  const harness::tests::TempFolder place;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(place.path());
  SettingSpec file = spec("model", SettingType::text, "tiny"), folder = spec("folder", SettingType::text, "");
  file.path_to = harness::PathTo::file;
  folder.path_to = harness::PathTo::any;
  Settings settings({file, folder});
  EXPECT_EQ(settings.text("model"), "tiny");
  EXPECT_EQ(settings.text("folder"), "");
  const auto here = std::filesystem::current_path();
  std::ofstream("my model.yaml") << "x";
  std::filesystem::create_directory("tiny");
  settings.set("model", "./my model.yaml", "--set");
  EXPECT_EQ(settings.text("model"), here / "my model.yaml");
  settings.set("model", "tiny", "--set");  // a folder of that name is no model
  EXPECT_EQ(settings.text("model"), "tiny");
  settings.set("folder", "not/yet/../there", "--set");
  EXPECT_EQ(settings.text("folder"), here / "not/there");
  std::filesystem::current_path(before);
}

TEST(Settings, MistakesOfTheProgramAreLogicErrors) {
  EXPECT_THROW(Settings({spec("a", SettingType::integer, "x")}), std::logic_error);
  EXPECT_THROW(Settings({spec("a", SettingType::text, ""), spec("a", SettingType::text, "")}), std::logic_error);
  const Settings s = sample();
  EXPECT_THROW((void)s.integer("rate"), std::logic_error);
  EXPECT_THROW((void)s.integer("nothing"), std::logic_error);
}

}  // namespace
