// Case memory_law: the peak memory of a training step at several lengths, fitted as a + b*S + c*S^2 for each backend.
// The fits are written in the format of configs/memory, from which preflight foretells whether a run will fit.
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "reports/chart.hpp"
#include "suites/codes.hpp"
#include "suites/probes/memory_law.hpp"
#include "suites/probes/op_bytes.hpp"
#include "suites/throughput/baseline.hpp"
#include "suites/throughput/training_run.hpp"
#include "suites/ways.hpp"

namespace suites::throughput_cases {

namespace {

using harness::Context;
using harness::Json;

struct Plan {
  const Way& way;
  bool recompute = false;
};
std::vector<Plan> plans(bool cuda) {
  std::vector<Plan> plans = {{way_named("sdpa"), true}};
  for (const Way* way : model_ways(Way::OfModel::measured))
    if (cuda || !way->needs_cuda) plans.push_back({*way});
  return plans;
}

// Up to n*l' tokens every block is chosen and the gathered selection grows with the square of the length; the law holds
// beyond, and below it foretells too much. No length is so short that the update's memory hides the tokens'.
std::vector<std::int64_t> lengths(const nsa::Geometry& g) {
  const std::int64_t first = std::max<std::int64_t>(g.n_sel * g.l_sel, 256);
  return {first, first * 5 / 4, first * 3 / 2, first * 7 / 4, first * 2};
}

// Bytes a pair of tokens that the method needs: in each layer the compressed branch's mask (one row a head of the group
// and token, one column for every stride), and where blocks are chosen by mask that mask, one a group; each as booleans
// and as what is added to scores.
double counted_pairs(const nsa::Config& config, const Way& way) {
  if (!way.makes_masks) return 0;
  const nsa::ModelConfig& m = config.model;
  const double element = config.train.precision == nsa::Precision::bf16   ? 2
                         : config.train.precision == nsa::Precision::fp32 ? 4
                                                                          : 8;
  const double mask = 1 + element;
  const double compressed = static_cast<double>(m.heads_per_group()) / static_cast<double>(m.nsa.d) * mask;
  const bool by_mask = way.parts.at(nsa::Op::attend_selected).variant == nsa::RouteVariant::masked;
  const double selected = by_mask ? static_cast<double>(m.n_kv_groups) * mask : 0;
  return static_cast<double>(m.n_layers) * (compressed + selected);
}
// Twice the count, and one byte a query head and layer for what lives only within an op: a quarter of what a mask or
// scores of [S,S] in fp32, kept for every head and layer, would need.
double allowed_pairs(const nsa::Config& config, const Way& way) {
  return 2 * counted_pairs(config, way) + static_cast<double>(config.model.n_layers * config.model.n_heads);
}

// GPU memory that the allocator holds and that tensors use, at most, in one training by itself: what it keeps from
// other lengths has other sizes, and no run that trains at one length has it.
struct Held {
  std::string training;
  double reserved = 0, allocated = 0;  // bytes
  // The allocator asks for whole segments (2 and 20 MiB, for each stream): little memory is not held against it.
  [[nodiscard]] double to_allocated() const {
    constexpr double kSegments = 64 << 20;
    return allocated > 0 ? std::max(reserved - kSegments, allocated) / allocated : 1;
  }
};
void forget_held(const Context& context) {
  c10::cuda::CUDACachingAllocator::emptyCache();
  c10::cuda::CUDACachingAllocator::resetPeakStats(device_of(context).index());
}
Held held_since(const Context& context, std::string training) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_of(context).index());
  return {std::move(training), static_cast<double>(stats.reserved_bytes[kAll].peak),
          static_cast<double>(stats.allocated_bytes[kAll].peak)};
}

// Peaks of a training step: weights, moments (which the trainer makes), gradients and what autograd keeps.
// All that this process allocates from the model's construction on is counted. The passes and the update
// have peaks of their own.
struct Peaks {
  std::vector<probes::MemoryPoint> passes;
  double update = 0;
  std::vector<Held> held;  // on a GPU
};
Peaks measure_peaks(const Subject& subject, Context& context, const nsa::Config& config, const Plan& plan) {
  probes::OpBytesScope scope;
  Bench bench = make_bench(subject, context, config, plan.way.flags());
  bench.config.train.gradient_checkpointing = plan.recompute;
  bench.config.train.cuda_graph = nsa::CudaGraph::off;  // a captured step keeps these bytes for as long as it lives
  Peaks peaks;
  for (const std::int64_t S : lengths(config.model.nsa)) {
    const std::string name = fmt::format("{}{}, S = {}", plan.way.name, plan.recompute ? ", recomputing" : "", S);
    context.phase(name);
    bench.config.train.seq_len = S;
    if (context.cuda()) forget_held(context);
    Training training(bench, context);
    training.on_phase([&](std::string_view phase) {
      if (phase != "update") return;
      peaks.passes.push_back({static_cast<double>(S), static_cast<double>(scope.so_far().peak)});
      scope.restart_peak();
    });
    scope.restart_peak();
    (void)training.step();
    peaks.update = std::max(peaks.update, static_cast<double>(scope.so_far().peak));
    if (context.cuda()) peaks.held.push_back(held_since(context, name));
  }
  return peaks;
}

std::string origin(const Context& context) {
  const Json& provenance = context.planned_provenance();
  const auto text = [&](const char* pointer) {
    const Json::json_pointer place(pointer);
    return provenance.contains(place) ? provenance.at(place).get<std::string>() : std::string("?");
  };
  return fmt::format("run {}, build {}, torch {}", context.run_id(), text("/build/build_id"), text("/torch/version"));
}

Json to_json(const probes::MemoryFit& fit) {
  Json points = Json::array();
  for (const probes::MemoryPoint& p : fit.points)
    points.push_back({{"S", p.S}, {"peak_bytes", p.bytes}, {"law_bytes", reports::number(fit.law.at(p.S))}});
  return {{"a_bytes", reports::number(fit.law.a)},
          {"b_bytes_per_token", reports::number(fit.law.b)},
          {"c_bytes_per_token2", reports::number(fit.law.c)},
          {"floor_bytes", reports::number(fit.law.floor)},
          {"r2", reports::number(fit.r2)},
          {"exponent", reports::number(fit.exponent)},
          {"worst_point_percent", reports::number(fit.worst_percent)},
          {"points", points}};
}

// Of the training that is worst.
void judge_fragmentation(Context& context, const std::vector<Held>& held) {
  const auto worst = std::ranges::max_element(held, {}, &Held::to_allocated);
  if (worst == held.end()) return;
  const Json evidence = {{"training", worst->training},
                         {"reserved_peak_bytes", worst->reserved},
                         {"allocated_peak_bytes", worst->allocated}};
  context.fact("allocator", evidence);
  context.metric("reserved_to_allocated", worst->to_allocated(), "1");
  context.expect_at_most("reserved_to_allocated", worst->to_allocated(), 2, "1", codes::kFragmented, evidence);
}

}  // namespace

void memory_law(const Subject& subject, Context& context) {
  nsa::Config config = subject.config(context);
  config.train.batch_size = 1;
  config.train.accumulate_grad_batches = 1;
  const std::string device = context.cuda() ? gpu_name(context) : "cpu";
  if (context.cuda()) at::globalContext().lazyInitDevice(at::kCUDA);  // the allocator has no statistics before
  std::vector<Held> held;
  Json table = Json::object();
  reports::Chart chart{"Peak memory of a training step by length", {"S", "tokens", true}, {"peak", "byte", true}, {}};
  std::string yaml = "laws:\n";
  for (const Plan& plan : plans(context.cuda())) {
    const std::string name = probes::memory_backend(plan.way.flags(), context.cuda(), plan.recompute);
    try {
      const Peaks peaks = measure_peaks(subject, context, config, plan);
      held.insert(held.end(), peaks.held.begin(), peaks.held.end());
      probes::MemoryFit fit = probes::fit(peaks.passes);
      fit.law.floor = peaks.update;
      const probes::StoredLaw law{
          {config.model.name, name, std::string(nsa::to_string(config.train.precision)), device},
          fit.law,
          nsa::parameter_count(config.model),
          fit.points.back().S,
          origin(context)};
      yaml += probes::to_yaml(law, fit);
      Json row = to_json(fit);
      row["counted_bytes_per_token2"] = reports::number(counted_pairs(config, plan.way));
      table[name] = row;
      chart.series.push_back({name, {}, {}});
      for (const probes::MemoryPoint& point : fit.points) {
        chart.series.back().x.push_back(point.S);
        chart.series.back().y.push_back(point.bytes);
      }
      context.metric(fmt::format("peak_{}_S{:.0f}", name, fit.points.back().S), fit.points.back().bytes, "byte");
      context.metric("memory_exponent_" + name, fit.exponent, "1");
      if (name == "reference") continue;  // dense by design: it is the oracle, not a way to train
      context.expect_at_most("bytes_per_pair_of_tokens_" + name, fit.law.c, allowed_pairs(config, plan.way), "byte",
                             codes::kMemoryLaw, row);
    } catch (const NoProgress& stopped) {
      stopped.tell(context, "memory_law, " + name);
    }
  }
  context.fact("laws", table);
  context.fact("peaks", reports::to_json(chart));
  context.fact("yaml", yaml);
  const std::filesystem::path file = "memory_law.yaml";
  std::ofstream stream(context.run_folder() / file);
  stream << "# Peak bytes of a training step, max(floor, a + B*(b*S + c*S^2)); for configs/memory.\n" << yaml;
  if (!stream.flush()) throw std::runtime_error("memory_law: cannot write " + (context.run_folder() / file).string());
  context.artifact(file);
  judge_fragmentation(context, held);
}

}  // namespace suites::throughput_cases
