#include "nsa/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

namespace {

using nsa::Config;
using nsa::ConfigInvalid;
using testing::ElementsAre;
using testing::HasSubstr;

// The lines of the refusal of `yaml`; empty when it is accepted.
std::vector<std::string> refusal(const std::string& yaml) {
  try {
    (void)nsa::parse_config(yaml, "x.yaml");
  } catch (const ConfigInvalid& invalid) {
    std::vector<std::string> lines;
    for (const auto& error : invalid.errors) lines.push_back(to_string(error));
    return lines;
  }
  return {};
}

std::filesystem::path write_file(const std::string& name, const std::string& text) {
  const auto path = std::filesystem::path(testing::TempDir()) / name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::filesystem::path model_file(const std::string& name) {
  return std::filesystem::path(__FILE__).parent_path() / "../../configs/models" / name;
}

TEST(Config, DefaultsAreValidAndFillWhatIsLeftOut) {
  EXPECT_TRUE(nsa::validate(Config{}).empty());
  const Config config = nsa::parse_config("model:\n  dim: 96\n", "x.yaml");
  EXPECT_EQ(config.model.dim, 96);
  EXPECT_EQ(config.model.n_layers, 12);
  EXPECT_EQ(config.source, "x.yaml");
}

TEST(Config, ReadsEveryKindOfValue) {
  const Config config = nsa::parse_config(
      "model: {name: 'a b', dim: +96, rope_base: 5e5}\n"
      "nsa: {phi: mlp, gate: \"sigmoid\", gate_tau: .5}\n"
      "train: {precision: fp64, seed: 18446744073709551615, gradient_checkpointing: true, lr_min: -0.0}\n",
      "x.yaml");
  EXPECT_EQ(config.model.name, "a b");
  EXPECT_EQ(config.model.dim, 96);
  EXPECT_EQ(config.model.rope_base, 5e5);
  EXPECT_EQ(config.model.phi, nsa::Phi::mlp);
  EXPECT_EQ(config.model.gate, nsa::GateActivation::sigmoid);
  EXPECT_EQ(config.model.gate_tau, 0.5);
  EXPECT_EQ(config.train.precision, nsa::Precision::fp64);
  EXPECT_EQ(config.train.seed, std::numeric_limits<std::uint64_t>::max());
  EXPECT_TRUE(config.train.gradient_checkpointing);
  EXPECT_EQ(nsa::flatten(config).at("train.lr_min"), "0");
}

TEST(Config, UnknownKeysNameTheNearest) {
  EXPECT_THAT(refusal("model:\n  dimm: 7\n"),
              ElementsAre("x.yaml:2: model.dimm = 7: is not a key; did you mean model.dim?"));
  EXPECT_THAT(refusal("model:\n  l_sel: 64\n"),
              ElementsAre("x.yaml:2: model.l_sel = 64: is not a key; did you mean nsa.l_sel?"));
  EXPECT_THAT(refusal("nsa:\n  quite_different: 1\n"), ElementsAre(HasSubstr("nsa has l, d, l_sel, n_sel, w, phi")));
  EXPECT_THAT(refusal("trian:\n  lr: 1\n"),
              ElementsAre("x.yaml:1: trian = (a mapping): is not a section; did you mean train?"));
  EXPECT_THAT(refusal("seq_len: 128\n"), ElementsAre(HasSubstr("did you mean train.seq_len?")));
  EXPECT_THAT(refusal("zzz: 128\n"), ElementsAre(HasSubstr("the sections are model, nsa and train")));
}

TEST(Config, WrongTypes) {
  const char* rule = "must be an integer from 1 to 131072";
  for (const auto& [written, shown] : std::vector<std::pair<std::string, std::string>>{{"12.0", "12.0"},
                                                                                       {"'768'", "\"768\""},
                                                                                       {"0x10", "0x10"},
                                                                                       {"7 8", "7 8"},
                                                                                       {"", "(nothing)"},
                                                                                       {"~", "(nothing)"},
                                                                                       {"''", "\"\""},
                                                                                       {"[1, 2]", "(a list)"},
                                                                                       {"{a: 1}", "(a mapping)"},
                                                                                       {"true", "true"}})
    EXPECT_THAT(refusal("model:\n  dim: " + written + "\n"),
                ElementsAre("x.yaml:2: model.dim = " + shown + ": " + rule));
  EXPECT_THAT(refusal("train: {gradient_checkpointing: 1}"), ElementsAre(HasSubstr("must be true or false")));
  EXPECT_THAT(refusal("train: {precision: fp16}"), ElementsAre(HasSubstr("must be one of fp64, fp32, bf16")));
  EXPECT_THAT(refusal("train: 5"), ElementsAre("x.yaml:1: train = 5: must be a mapping of keys"));
  EXPECT_THAT(refusal("train:\n"), ElementsAre(HasSubstr("must be a mapping of keys")));
  EXPECT_THAT(refusal("? [a, b]\n: 1\n"), ElementsAre(HasSubstr("keys are plain words")));
}

TEST(Config, NumbersOutOfRange) {
  EXPECT_THAT(refusal("model: {dim: 0}"), ElementsAre(HasSubstr("model.dim = 0: must be an integer from 1 to 131072")));
  EXPECT_THAT(refusal("model: {dim: -4}"), ElementsAre(HasSubstr("model.dim = -4")));
  EXPECT_THAT(refusal("model: {dim: 99999999999999999999}"),
              ElementsAre(HasSubstr("model.dim = 99999999999999999999")));
  EXPECT_THAT(refusal("model: {vocab: 255}"), ElementsAre(HasSubstr("from 256")));
  EXPECT_THAT(refusal("nsa: {n_sel: 2}"), ElementsAre(HasSubstr("nsa.n_sel = 2: must be an integer from 3")));
  EXPECT_THAT(refusal("nsa: {w: 0}"), ElementsAre(HasSubstr("nsa.w = 0")));
  EXPECT_THAT(refusal("train: {seed: -1}"), ElementsAre(HasSubstr("train.seed = -1")));
  EXPECT_THAT(refusal("train: {seed: 18446744073709551616}"), ElementsAre(HasSubstr("to 18446744073709551615")));
}

TEST(Config, NumbersThatAreNotFinite) {
  for (const char* text : {"nan", "inf", "-inf", ".nan", ".inf", "-.inf", "1e999", "NaN"})
    EXPECT_THAT(refusal(std::string("train: {lr: ") + text + "}"),
                ElementsAre(testing::AllOf(HasSubstr("x.yaml:1: train.lr = "), HasSubstr("must be a number from"))))
        << text;
  Config config;
  config.train.grad_clip = std::nan("");
  config.model.gate_tau = std::numeric_limits<double>::infinity();
  ASSERT_EQ(nsa::validate(config).size(), 2U);
  EXPECT_EQ(nsa::validate(config)[0].key, "nsa.gate_tau");
  EXPECT_EQ(nsa::validate(config)[1].value, "nan");
}

TEST(Config, Widths) {
  for (const char* width : {"0", "7", "12", "63", "257", "264", "-8"})
    EXPECT_THAT(refusal(std::string("model: {d_v: ") + width + "}"),
                ElementsAre(HasSubstr("must be a multiple of 8 from 8 to 256")))
        << width;
  for (const char* width : {"8", "64", "192", "256"})
    EXPECT_THAT(refusal(std::string("model: {d_k: ") + width + "}"), testing::IsEmpty()) << width;
  EXPECT_THAT(refusal("model: {d_k: 63}"), ElementsAre(HasSubstr("RoPE rotates pairs")));
}

TEST(Config, CombinationsThatCannotWork) {
  EXPECT_THAT(refusal("nsa:\n  l: 32\n  d: 12\n  l_sel: 60\n"),
              ElementsAre("x.yaml:3: nsa.d = 12: must divide nsa.l (32)"));
  EXPECT_THAT(refusal("nsa:\n  l_sel: 72\n"), ElementsAre("x.yaml:2: nsa.d = 16: must divide nsa.l_sel (72)"));
  EXPECT_THAT(refusal("nsa:\n  l: 128\n"), ElementsAre("x.yaml:2: nsa.l = 128: must be at most nsa.l_sel (64)"));
  EXPECT_THAT(refusal("model:\n  n_heads: 12\n  n_kv_groups: 5\n"),
              ElementsAre("x.yaml:2: model.n_heads = 12: must be a multiple of model.n_kv_groups (5)"));
  EXPECT_THAT(refusal("train:\n  lr_min: 0.5\n"),
              ElementsAre("x.yaml:2: train.lr_min = 0.5: must be at most train.lr (0.0002)"));
  EXPECT_THAT(refusal("train:\n  steps: 1\n"),
              ElementsAre("x.yaml:2: train.warmup_steps = 2: must be at most train.steps (1)"));
}

TEST(Config, EveryErrorAtOnceAndOneMistakeOneMessage) {
  EXPECT_THAT(refusal("model:\n  n_heads: abc\n  n_kv_groups: 7\nnsa:\n  d: 0\n  gate: hard\ntrain:\n  lr: -1\n"),
              ElementsAre(HasSubstr("x.yaml:2: model.n_heads = abc"), HasSubstr("x.yaml:6: nsa.gate = hard"),
                          HasSubstr("x.yaml:5: nsa.d = 0"), HasSubstr("x.yaml:8: train.lr = -1")));
  try {
    (void)nsa::parse_config("model: {dim: 0, d_k: 3}", "x.yaml");
    FAIL();
  } catch (const ConfigInvalid& invalid) {
    EXPECT_STREQ(invalid.what(),
                 "x.yaml:1: model.dim = 0: must be an integer from 1 to 131072\n"
                 "x.yaml:1: model.d_k = 3: must be a multiple of 8 from 8 to 256 (RoPE rotates pairs, kernels load 8 "
                 "at a time)");
  }
}

TEST(Config, DuplicateKeys) {
  EXPECT_THAT(refusal("model:\n  dim: 64\n  dim: 128\n"),
              ElementsAre("x.yaml:3: model.dim = 128: is set twice, first at x.yaml:2"));
  EXPECT_THAT(refusal("model: {dim: 64}\nmodel: {dim: 64}\n"), ElementsAre(HasSubstr("x.yaml:2: model = (a mapping)")));
}

TEST(Config, MalformedYaml) {
  EXPECT_THAT(refusal("model:\n  dim: [1, 2\n"), ElementsAre(testing::StartsWith("x.yaml:3:1: malformed YAML: ")));
  EXPECT_THAT(refusal("model:\n\tdim: 1\n"), ElementsAre(testing::StartsWith("x.yaml:2:")));
  EXPECT_THAT(refusal("a: b: c"), ElementsAre(testing::StartsWith("x.yaml:1:")));
  EXPECT_THAT(refusal(""), ElementsAre(HasSubstr("must be a mapping with the sections model, nsa and train")));
  EXPECT_THAT(refusal("# only a comment\n"), ElementsAre(HasSubstr("(nothing)")));
  EXPECT_THAT(refusal("- a\n- b\n"), ElementsAre(HasSubstr("(a list)")));
  EXPECT_THAT(refusal("{}"), ElementsAre(HasSubstr("must set at least one key")));
  EXPECT_THAT(refusal("model: {}"), ElementsAre(HasSubstr("must set at least one key")));
  EXPECT_THAT(refusal("model: {dim: 8}\n---\nmodel: {dim: 9}\n"), ElementsAre(HasSubstr("one YAML document")));
}

TEST(Config, LongAndControlValuesStayOnOneShortLine) {
  const auto lines = refusal("model: {dim: \"a\\nb" + std::string(500, 'x') + "\"}");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_LT(lines[0].size(), 160U);
  EXPECT_EQ(lines[0].find('\n'), std::string::npos);
  EXPECT_THAT(refusal("model: {name: \"a\\nb\"}"), ElementsAre(HasSubstr("on one line")));
  EXPECT_THAT(refusal("model: {name: ''}"), ElementsAre(HasSubstr("not empty")));
}

TEST(Config, FilesThatCannotBeRead) {
  EXPECT_THROW((void)nsa::load_config("no/such/file.yaml"), ConfigInvalid);
  EXPECT_THROW((void)nsa::load_config(testing::TempDir()), ConfigInvalid);
  try {
    (void)nsa::load_config("no/such/file.yaml");
  } catch (const ConfigInvalid& invalid) {
    EXPECT_STREQ(invalid.what(), "no/such/file.yaml: configuration file: does not exist");
  }
}

TEST(Config, FlattenIsCanonicalAndComplete) {
  const auto flat = nsa::flatten(nsa::parse_config("train: {lr: 0.00020}\nmodel: {rope_base: 1e4, dim: 0768}", "x"));
  EXPECT_EQ(flat.size(), 47U);
  EXPECT_EQ(flat.at("train.lr"), "0.0002");
  EXPECT_EQ(flat.at("model.rope_base"), "10000");
  EXPECT_EQ(flat.at("model.dim"), "768");
  EXPECT_EQ(flat.at("nsa.l"), "32");
  EXPECT_EQ(flat.at("nsa.phi"), "avg");
  EXPECT_EQ(flat.at("train.gradient_checkpointing"), "false");
  EXPECT_EQ(flat, nsa::flatten(Config{}));
}

std::vector<std::filesystem::path> config_files() {
  std::vector<std::filesystem::path> files;
  for (const char* folder : {"models", "train"})
    for (const auto& entry : std::filesystem::directory_iterator(model_file("../" + std::string(folder))))
      files.push_back(entry.path());
  return files;
}

TEST(Config, FlattenReadsBackAsTheSameConfiguration) {
  ASSERT_GT(config_files().size(), 10U);
  for (const auto& file : config_files()) {
    const auto flat = nsa::flatten(nsa::load_config(file));
    std::map<std::string, std::string> sections;
    for (const auto& [key, value] : flat)
      sections[key.substr(0, key.find('.'))] += "  " + key.substr(key.find('.') + 1) + ": " + value + "\n";
    std::string yaml;
    for (const auto& [section, lines] : sections) yaml += section + ":\n" + lines;
    EXPECT_EQ(nsa::flatten(nsa::parse_config(yaml, "again")), flat) << file;
  }
}

TEST(Config, IdentityLeavesOutWhatChangesNoNumber) {
  Config config;
  const auto before = nsa::identity(config);
  EXPECT_EQ(before.size(), nsa::flatten(config).size() - 11);
  config.train.log_every = config.train.save_every = config.train.eval_batches = 77;
  config.train.hang_timeout_s = 1;
  config.train.cuda_graph = nsa::CudaGraph::on;
  config.train.epochs = 3;
  config.train.stop_on_divergence = false;
  EXPECT_EQ(nsa::identity(config), before);
  config.train.packed = true;
  EXPECT_NE(nsa::identity(config), before);
  EXPECT_NE(nsa::identity(config).at("train.packed"), before.at("train.packed"));
}

TEST(Config, OverridesAreSettingsWithAPlaceOfTheirOwn) {
  const auto file = write_file("base.yaml", "train:\n  lr: 1e-3\n  steps: 50\n");
  const std::vector<nsa::Override> good = {{"train.lr", "2e-3", "--set"}, {"train.data", "synthetic", "--data"}};
  const Config config = nsa::load_config(file, good);
  EXPECT_EQ(config.train.lr, 2e-3);
  EXPECT_EQ(config.train.data, "synthetic");
  EXPECT_EQ(config.train.steps, 50);

  const std::vector<nsa::Override> bad = {{"train.lrr", "1", "--set"},
                                          {"steps", "1", "--set"},
                                          {"train.save_every", "often", "--save-every"},
                                          {"train.warmup_steps", "60", "--set"}};
  try {
    (void)nsa::load_config(file, bad);
    FAIL();
  } catch (const ConfigInvalid& invalid) {
    std::vector<std::string> lines;
    for (const auto& error : invalid.errors) lines.push_back(to_string(error));
    EXPECT_THAT(lines, ElementsAre("--set: train.lrr = 1: is not a key; did you mean train.lr?",
                                   HasSubstr("--set: steps = 1: is not a key"),
                                   "--save-every: train.save_every = often: must be an integer from 0 to 1000000000",
                                   "--set: train.warmup_steps = 60: must be at most train.steps (50)"));
  }
}

TEST(Config, CombinationsOfATrainingRun) {
  EXPECT_THAT(refusal("train:\n  packed: true\n  batch_size: 2\n"),
              ElementsAre("x.yaml:3: train.batch_size = 2: must be 1 with train.packed (true)"));
  EXPECT_THAT(refusal("train:\n  packed: true\n  cuda_graph: true\n"),
              ElementsAre("x.yaml:3: train.cuda_graph = true: must be auto or false with train.packed (true)"));
  EXPECT_THAT(refusal("train: {precision: fp64, cuda_graph: true}"),
              ElementsAre(HasSubstr("train.cuda_graph = true: must be auto or false with train.precision (fp64)")));
  EXPECT_THAT(refusal("train: {order: random_crops, epochs: 2}"),
              ElementsAre(HasSubstr("train.epochs = 2: must be 1 with train.order (random_crops)")));
  EXPECT_THAT(refusal("train:\n  eval_every: 5\n"),
              ElementsAre("x.yaml:2: train.validation_share = 0: must be above 0 with train.eval_every (5)"));
  EXPECT_THAT(refusal("train: {validation_share: 0.6, keep_checkpoints: 0, order: sorted}"),
              testing::UnorderedElementsAre(
                  HasSubstr("train.validation_share = 0.6: must be a number from 0 to 0.5"),
                  HasSubstr("train.keep_checkpoints = 0: must be an integer from 1"),
                  HasSubstr("train.order = sorted: must be one of sequential, random_crops, shuffled")));
}

TEST(Config, DriftComparesOnlyWhatTheExpectedFileSets) {
  Config config;
  config.model.n_layers = 6;
  config.train.lr = 3e-4;
  const auto expected = write_file("expected.yaml", "model:\n  n_layers: 12\n  dim: 768\ntrain:\n  lr: 0.00030\n");
  const auto differences = nsa::drift(config, expected);
  ASSERT_EQ(differences.size(), 1U);
  EXPECT_EQ(differences[0].key, "model.n_layers");
  EXPECT_EQ(differences[0].expected, "12");
  EXPECT_EQ(differences[0].actual, "6");
  EXPECT_EQ(differences[0].where, expected.string() + ":2");
}

TEST(Config, DriftRefusesWhatIsNoExpectation) {
  EXPECT_THROW((void)nsa::drift(Config{}, write_file("empty.yaml", "model: {}\n")), ConfigInvalid);
  EXPECT_THROW((void)nsa::drift(Config{}, write_file("typo.yaml", "model: {dimm: 3}\n")), ConfigInvalid);
  EXPECT_THROW((void)nsa::drift(Config{}, write_file("type.yaml", "model: {dim: x}\n")), ConfigInvalid);
  EXPECT_THROW((void)nsa::drift(Config{}, "no/such.yaml"), ConfigInvalid);
}

TEST(Config, TheModelFilesAreWhatTheySayTheyAre) {
  const auto seed = nsa::load_config(model_file("m7c_125m.yaml"));
  EXPECT_EQ(nsa::parameter_count(seed.model), 78'295'332);  // by hand: 2*256*768 + 768 + 12 * 6491779
  EXPECT_EQ(seed.train.precision, nsa::Precision::bf16);
  EXPECT_EQ(seed.train.seq_len, 2048);
  const auto paper = nsa::load_config(model_file("paper.yaml"));
  EXPECT_EQ(paper.model.heads_per_group(), 16);
  EXPECT_EQ(paper.model.d_k, 192);
  EXPECT_EQ(paper.model.d_v, 128);
  EXPECT_EQ(nsa::load_config(model_file("kernel_bench.yaml")).model.n_layers, 1);
  EXPECT_EQ(nsa::load_config(model_file("tiny.yaml")).train.precision, nsa::Precision::fp32);
}

TEST(Config, ParameterCountOfTheLearnedCompression) {
  nsa::ModelConfig model;
  const auto without = nsa::parameter_count(model);
  model.phi = nsa::Phi::mlp;
  // A layer and a side: position 32*64, fc1 64*2048, fc2 64*64.
  EXPECT_EQ(nsa::parameter_count(model) - without, 12 * 2 * (2048 + 131072 + 4096));
}

}  // namespace
