// Configuration of the model and of a training run, from YAML. Loading and validating use no torch call, so that a
// process which must not touch torch can do both.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace nsa {

enum class Phi { avg, mlp };                     // how a block becomes one compressed key/value (Eq 7)
enum class GateActivation { softmax, sigmoid };  // over the three branches, or each by itself (Eq 5)
enum class Precision { fp64, fp32, bf16 };
// The rows of the data in the order of the file, in an order that the seed and the pass decide, or from anywhere
// without an end.
enum class DataOrder { sequential, random_crops, shuffled };
// Is a training step captured as one CUDA graph and replayed? `automatic`: where it can be; "auto", "true", "false".
enum class CudaGraph { automatic, on, off };
[[nodiscard]] std::string_view to_string(Phi phi);
[[nodiscard]] std::string_view to_string(GateActivation gate);
[[nodiscard]] std::string_view to_string(Precision precision);
[[nodiscard]] std::string_view to_string(DataOrder order);
[[nodiscard]] std::string_view to_string(CudaGraph use);

// Block geometry, in tokens (paper 3.3; symbols of nsa/README.md).
struct Geometry {
  std::int64_t l = 32;      // compression block
  std::int64_t d = 16;      // compression stride; divides l and l_sel
  std::int64_t l_sel = 64;  // selection block l'; l <= l'
  std::int64_t n_sel = 16;  // selected blocks n, the three forced ones included; >= 3
  std::int64_t w = 512;     // window: exactly the tokens [t-w+1, t]
};

struct ModelConfig {
  std::string name = "unnamed";
  std::int64_t dim = 768;
  std::int64_t n_layers = 12;
  std::int64_t n_heads = 12;     // Hq
  std::int64_t n_kv_groups = 2;  // G; divides n_heads
  std::int64_t d_k = 64;         // even (RoPE pairs)
  std::int64_t d_v = 64;
  std::int64_t vocab = 256;
  double rope_base = 10000.0;
  Geometry nsa;
  Phi phi = Phi::avg;
  GateActivation gate = GateActivation::softmax;
  double gate_tau = 1.0;

  [[nodiscard]] std::int64_t heads_per_group() const { return n_heads / n_kv_groups; }  // h
};

// Steps are optimizer steps everywhere, however many batches each of them accumulates.
struct TrainConfig {
  Precision precision = Precision::bf16;
  bool master_weights = true;  // 16-bit parameters are updated through fp32 copies (train/adamw.hpp)
  std::int64_t steps = 10;     // length of the schedule
  std::int64_t seq_len = 2048;
  std::int64_t batch_size = 1;
  std::int64_t accumulate_grad_batches = 1;
  std::int64_t warmup_steps = 2;
  double lr = 2e-4;     // peak
  double lr_min = 0.0;  // the cosine ends here
  double weight_decay = 0.01;
  double grad_clip = 1.0;  // global norm
  std::uint64_t seed = 1337;
  bool gradient_checkpointing = false;  // activations of a layer are computed again in backward instead of kept
  bool deterministic = false;           // a GPU's sums in a fixed order: the same bits every time, at a price in speed

  std::string data = "fixtures/text/corpus.txt";  // text, *.jsonl or "synthetic"; relative to the data folder
  DataOrder order = DataOrder::sequential;
  bool packed = false;            // documents end to end in one row, none sees another; batch_size is 1
  double validation_share = 0.0;  // of the data, kept out of training
  bool skip_bad_lines = false;    // JSONL: pass over lines that hold no text instead of stopping

  // How a run is looked after. None of these changes a number that it computes (`identity` leaves them out).
  std::int64_t epochs = 1;         // passes over the data, then it has ended; 0: as many as the steps need
  bool stop_on_divergence = true;  // a loss that has left its bounds for good stops the run (train/divergence.hpp)
  CudaGraph cuda_graph = CudaGraph::automatic;  // the step captured once and replayed (train/graph_step.hpp)
  std::int64_t log_every = 20;
  std::int64_t eval_every = 0;  // 0: never
  std::int64_t eval_batches = 10;
  std::int64_t save_every = 0;  // 0: only at the end
  std::int64_t keep_checkpoints = 3;
  std::int64_t prefetch_batches = 4;  // read ahead by a thread; 0: none
  double loader_timeout_s = 60;       // the longest wait for a batch
  double hang_timeout_s = 300;        // without progress and without work; 0: not watched
};

struct Config {
  ModelConfig model;
  TrainConfig train;
  std::string source;  // the file, or "built in"
};

// One problem: which key, what it was, what is allowed (a phrase: "must divide nsa.l (32)") and where it stands
// ("configs/x.yaml:7", malformed YAML with its column; "" when defaulted).
struct ConfigError {
  std::string key, value, allowed, where;
};
// "configs/x.yaml:7: nsa.d = 12: must divide nsa.l (32)"
[[nodiscard]] std::string to_string(const ConfigError& error);

class ConfigInvalid : public std::runtime_error {  // what(): one line an error
 public:
  explicit ConfigInvalid(std::vector<ConfigError> errors);
  std::vector<ConfigError> errors;
};

// YAML with the top-level mappings `model`, `nsa` (keys l, d, l_sel, n_sel, w, phi, gate, gate_tau) and `train`; keys
// are the field names above; what is left out has its default. Unknown and duplicate keys, wrong types, values out of
// range and impossible combinations are collected and thrown together; malformed YAML and an empty file as well.
[[nodiscard]] Config load_config(const std::filesystem::path& file);
// A key that is set from outside the file: "train.lr", "3e-4", and what messages call the place ("--set").
struct Override {
  std::string key, value, where;
};
// As above, with keys set anew; mistakes of the file and of the overrides are reported together.
[[nodiscard]] Config load_config(const std::filesystem::path& file, std::span<const Override> overrides);
// As load_config, from text; `name` stands for the file in messages.
[[nodiscard]] Config parse_config(const std::string& yaml, const std::string& name);
// Every error of the values at once (`where` empty); load_config calls it and fills in the places.
[[nodiscard]] std::vector<ConfigError> validate(const Config& config);

// "model.dim" -> "768", "nsa.l" -> "32", "train.lr" -> "0.0002": canonical text, for records, hashes and comparison.
[[nodiscard]] std::map<std::string, std::string> flatten(const Config& config);
// The keys of flatten() that decide what a run computes: what must be the same to go on with one.
[[nodiscard]] std::map<std::string, std::string> identity(const Config& config);
// Keys that `expected_file` (any subset of a configuration file, at least one key) sets and `config` resolves
// differently. Throws ConfigInvalid for a file that is malformed, unknown in its keys, wrong in its types or empty.
struct Drift {
  std::string key, expected, actual, where;
};
[[nodiscard]] std::vector<Drift> drift(const Config& config, const std::filesystem::path& expected_file);

// Analytic number of parameters (the model's own count must equal it).
[[nodiscard]] std::int64_t parameter_count(const ModelConfig& model);

}  // namespace nsa
