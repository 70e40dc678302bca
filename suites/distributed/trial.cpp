#include "suites/distributed/trial.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "nsa/parallel/world.hpp"
#include "nsa/train/checkpoint.hpp"
#include "suites/codes.hpp"
#include "suites/distributed/rank.hpp"
#include "suites/training/made_text.hpp"

namespace suites::distributed_ranks {

namespace {

constexpr double kSharedMemoryOfARank = 32 << 20;  // that NCCL takes of /dev/shm for its neighbours

// Few layers and short rows, with every mechanism at work: a query has more blocks before it than it may choose. On a
// CPU narrow ones too, in a geometry of the same proportions; a GPU's kernels are made for the widths in use.
void make_small(nsa::Config& config, bool on_a_gpu) {
  nsa::ModelConfig& model = config.model;
  nsa::Geometry& nsa = model.nsa;
  model.n_layers = std::min<std::int64_t>(model.n_layers, 2);
  nsa.n_sel = std::min<std::int64_t>(nsa.n_sel, 4);
  if (!on_a_gpu) {
    model.dim = std::min<std::int64_t>(model.dim, 128);
    model.n_heads = model.n_kv_groups * std::min<std::int64_t>(model.heads_per_group(), 2);
    model.d_k = std::min<std::int64_t>(model.d_k, 32);
    model.d_v = std::min<std::int64_t>(model.d_v, 32);
    while (nsa.l_sel > 16 && nsa.l_sel % 2 == 0 && nsa.l % 2 == 0 && nsa.d % 2 == 0 && nsa.d > 2) {
      nsa.l_sel /= 2;
      nsa.l /= 2;
      nsa.d /= 2;
      nsa.w = std::max<std::int64_t>(nsa.w / 2, 1);
    }
  }
  config.train.seq_len = (nsa.n_sel + 2) * nsa.l_sel;
}

std::int64_t bytes_of_text(const Trial& trial, std::int64_t length) {
  return length * (trial.rows * trial.whole_batches + trial.left_rows) + length / 2 + 1;
}

class ThreadsOfTorch {
 public:
  explicit ThreadsOfTorch(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~ThreadsOfTorch() { at::set_num_threads(before_); }
  ThreadsOfTorch(const ThreadsOfTorch&) = delete;
  ThreadsOfTorch& operator=(const ThreadsOfTorch&) = delete;

 private:
  int before_;
};

}  // namespace

TrialFolder::TrialFolder(const Context& context, const std::string& name)
    : path_(context.run_folder() / fmt::format("distributed-{}-{}", name, getpid())) {
  std::filesystem::remove_all(path_);
  std::filesystem::create_directories(path_);
}

TrialFolder::~TrialFolder() {
  std::error_code ignored;
  if (!keep_) {
    std::filesystem::remove_all(path_, ignored);
    return;
  }
  for (auto entry = std::filesystem::recursive_directory_iterator(path_, ignored);
       entry != std::filesystem::recursive_directory_iterator(); entry.increment(ignored))
    if (entry->path().extension() == ".safetensors" || entry->path().extension() == ".txt")
      std::filesystem::remove(entry->path(), ignored);
}

bool runs_on_gpus(const Trial& trial, int gpus) { return gpus >= std::max(trial.ranks, trial.most_ranks); }

Order make_order(const Subject& subject, const Context& context, const Trial& trial,
                 const std::filesystem::path& folder) {
  nsa::Config config = subject.config(context);
  const bool a_gpu_each = context.cuda() && runs_on_gpus(trial, static_cast<int>(torch::cuda::device_count()));
  make_small(config, a_gpu_each);
  nsa::TrainConfig& train = config.train;
  train.precision = trial.precision;
  train.steps = trial.steps;
  train.warmup_steps = std::min<std::int64_t>(train.warmup_steps, trial.steps);
  train.batch_size = trial.rows;
  train.accumulate_grad_batches = trial.accumulate;
  train.epochs = 1;
  train.order = nsa::DataOrder::sequential;
  train.packed = false;
  train.cuda_graph = nsa::CudaGraph::off;
  train.data = (folder / "rows.txt").string();
  const auto bytes = static_cast<std::size_t>(bytes_of_text(trial, train.seq_len));
  std::string text = training_cases::made_prose(bytes);
  text.resize(bytes);
  training_cases::write_text(train.data, text);
  Order order;
  order.folder = folder;
  order.config = nsa::flatten(config);
  order.device = a_gpu_each ? "cuda" : "cpu";
  order.timeout_s = context.settings().real("distributed.timeout_s");
  order.planted = subject.planted_names();
  order.run_folder = context.run_folder();
  order.run_id = context.run_id();
  return order;
}

Tensors read_tensors(const std::filesystem::path& file) { return nsa::train::read_checkpoint(file).tensors; }

Alone run_alone(const Subject& subject, Order order) {
  order.folder /= "alone";
  write_order(order);
  const ThreadsOfTorch threads(order.threads);
  const int code = run_rank(subject, order, {});
  Alone alone{read_record(order.record_of(0), 0, 1), {}};
  if (code != 0 || !alone.record.done)
    throw std::runtime_error(fmt::format("one process alone does not come to its end: {}",
                                         alone.record.error ? alone.record.error->message : "without a word"));
  if (order.keep_first_step) alone.tensors = read_tensors(order.tensors_of(0));
  return alone;
}

std::optional<Records> run_told(Context& context, const Order& order, int ranks, TrialFolder& folder,
                                const RankRecord* alone) {
  const std::vector<Ended> ends = run_ranks(order, {.size = ranks, .progress = [&] { context.progress(); }});
  for (const Ended& end : ends)
    if (end.record.error && end.record.error->kind == "not_built")
      context.skip("no_backend", end.record.error->message);
  const std::vector<std::string> left = left_over(order);
  context.expect("no process is left", left.empty(), fmt::format("{} are left: {}", left.size(), fmt::join(left, ", ")),
                 codes::kRankLeftOver, {{"processes", left}});
  double seconds = 0;
  for (const Ended& end : ends) seconds = std::max(seconds, end.seconds);
  context.metric("seconds_of_the_ranks", seconds, "s");
  const Disagreements found = judge_ends(ends, ranks * kSharedMemoryOfARank);
  if (!found.empty() && alone != nullptr)
    tell(context, "ranks read each row once, up to there", rows_complete(records_of(ends), *alone), codes::kRankRows,
         folder);
  tell(context, "all ranks come to their end", found, codes::kRankEnded, folder);
  if (!found.empty()) return std::nullopt;
  return records_of(ends);
}

void tell(Context& context, const std::string& name, const Disagreements& found, std::string_view code,
          TrialFolder& folder) {
  if (found.empty()) {
    context.expect(name, true, "", code);
    return;
  }
  folder.keep();
  for (const Disagreement& one : found) context.expect(name, false, one.message, one.code, one.evidence);
}

}  // namespace suites::distributed_ranks
