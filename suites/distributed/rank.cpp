#include "suites/distributed/rank.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <mutex>
#include <utility>

#include "base/clock.hpp"
#include "base/environment.hpp"
#include "base/statistics.hpp"
#include "build_info.hpp"
#include "nsa/parallel/errors.hpp"
#include "nsa/parallel/group.hpp"
#include "nsa/parallel/handshake.hpp"
#include "nsa/train/checkpoint.hpp"
#include "nsa/train/stream.hpp"
#include "nsa/train/trainer.hpp"
#include "suites/distributed/rank_watch.hpp"
#include "suites/distributed/record.hpp"
#include "suites/rank_moment.hpp"

namespace suites::distributed_ranks {

namespace {

namespace parallel = nsa::parallel;
using Clock = std::chrono::steady_clock;
using At = RankMoment::At;

double free_shared_memory() {
  struct statvfs found {};
  if (statvfs("/dev/shm", &found) != 0) return -1;
  return static_cast<double>(found.f_bavail) * static_cast<double>(found.f_frsize);
}

// Of agree_on_time, which takes a plain function.
double clock_offset_s = 0;
double told_clock_s() { return parallel::wall_clock_s() + clock_offset_s; }

}  // namespace

nsa::Config config_of(const Order& order) {
  std::string yaml;
  std::map<std::string, std::string> sections;
  for (const auto& [key, value] : order.config) {
    const std::size_t dot = key.find('.');
    sections[key.substr(0, dot)] += fmt::format("  {}: {}\n", key.substr(dot + 1), value);
  }
  for (const auto& [section, lines] : sections) yaml += section + ":\n" + lines;
  return nsa::parse_config(yaml, order.file().string());
}

namespace {

class Rank {
 public:
  Rank(const Subject& subject, const Order& order, parallel::World world)
      : subject_(subject),
        order_(order),
        world_(std::move(world)),
        config_(config_of(order)),
        record_(order.record_of(world_.rank), world_.rank, world_.size) {}

  int run() {
    try {
      facts_.build = build_info::kBuildId;
      facts_.shared_memory_bytes = free_shared_memory();
      pass({.at = At::launched, .world = &world_, .config = &config_.train, .facts = &facts_});
      record_.launched(parallel::wall_clock_s() + facts_.clock_offset_s, facts_.shared_memory_bytes);
      make();
      if (!world_.address.empty()) join();
      train();
      return 0;
    } catch (const std::exception& error) {
      const RankError told = what_it_means(error);
      say(told);
      if (group_) group_->tell_failure(told.message);
      return 1;
    }
  }

 private:
  void pass(RankMoment moment) {
    moment.rank = world_.rank;
    moment.size = world_.size;
    moment.step = step_;
    subject_.pass(moment);
  }

  void at(const std::string& moment) {
    const std::lock_guard lock(mutex_);
    moment_ = moment;
    record_.at(moment);
  }
  void say(const RankError& error) {
    const std::lock_guard lock(mutex_);
    record_.error(error);
  }

  void make() {
    at("making the model");
    device_ = order_.device == "cuda" ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(world_.local_rank))
                                      : at::Device(at::kCPU);
    instance_ = subject_.model({.config = config_.model,
                                .flags = subject_.flags(),
                                .precision = config_.train.precision,
                                .device = device_,
                                .seed = config_.train.seed});
    const nsa::TrainConfig& train = config_.train;
    stream_ = nsa::train::open_stream({.data = train.data,
                                       .batch_size = train.batch_size,
                                       .seq_len = train.seq_len,
                                       .seed = train.seed,
                                       .packed = train.packed,
                                       .epochs = train.epochs,
                                       .vocab = config_.model.vocab});
    pass({.at = At::made, .model = &*instance_.model, .stream = &stream_});
  }

  void join() {
    at(kLooking);
    parallel::GroupOptions options;
    options.world = world_;
    options.device = device_;
    options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(order_.timeout_s * 1000));
    options.check_collectives = order_.check_always;
    options.doing = [this] {
      const std::lock_guard lock(mutex_);
      return moment_;
    };
    options.keep = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      stacks_ += text;
    };
    options.give_up = [this](const std::string& why) {
      say({"gave_up", why, Json::object()});
      std::_Exit(6);
    };
    options.seams.before = [this](const std::string& name, at::Tensor& tensor) { before(name, tensor); };
    options.seams.inside = [this](const std::string& name) { inside(name); };
    group_ = parallel::Group::join(options);
    at("comparing clocks");
    clock_offset_s = facts_.clock_offset_s;
    parallel::agree_on_time(*group_, parallel::kMostClockSkew_s, told_clock_s);
  }

  // As nsa-train does, before the first step.
  void agree(nsa::train::Trainer& trainer) {
    at("comparing what the ranks have");
    parallel::Facts facts = {{"build", facts_.build}};
    for (const auto& [name, value] : nsa::flatten(instance_.dispatcher->flags()))
      facts.emplace_back("flag " + name, value);
    facts.emplace_back("seed", std::to_string(config_.train.seed));
    trainer.compare_with_all(facts);
  }

  [[nodiscard]] bool is_parameter(const std::string& name) {
    const auto all = instance_.model->named_parameters();
    return all.contains(name);
  }

  void before(const std::string& name, at::Tensor& tensor) {
    at("before collective " + name);
    pass({.at = At::collective, .name = &name, .tensor = &tensor});
    if (name.starts_with("gradients")) {
      reduced_elements_ += tensor.numel();
      arrived_ = Clock::now();
    }
  }
  void inside(const std::string& name) {
    at("in collective " + name);
    pass({.at = At::inside, .name = &name});
  }

  void train() {
    at("making the trainer");
    nsa::train::Trainer trainer(instance_.model, config_.train, stream_, std::nullopt, group_);
    if (!order_.resume_from.empty()) trainer.load(nsa::train::read_checkpoint(order_.resume_from));
    agree(trainer);
    RankWatch watch(instance_.model);
    trainer.on_phase([&](std::string_view name) {
      at(fmt::format("step {}: {}", step_, name));
      if (name != "update") return;
      watch.reduced();
      pass({.at = At::reduced, .model = &*instance_.model});
    });
    const Json figures = time_collectives();
    pass({.at = At::agreed, .model = &*instance_.model, .stream = &stream_, .group = group_.get()});
    const std::int64_t steps = order_.stop_after > 0 ? order_.stop_after : config_.train.steps;
    while (trainer.steps_made() < steps && one_step(trainer, watch)) {
    }
    step_ = -1;
    at("writing");
    if (!order_.save_to.empty() && world_.rank == 0) nsa::train::write_checkpoint(order_.save_to, trainer.state());
    if (!watch.kept().empty())
      nsa::train::write_checkpoint(order_.tensors_of(world_.rank), {watch.kept(), {{"step", 0}}});
    const std::lock_guard lock(mutex_);
    record_.done(figures);
  }

  // Whether the run goes on.
  bool one_step(nsa::train::Trainer& trainer, RankWatch& watch) {
    const bool first = step_ < 0;
    step_ = trainer.steps_made();
    at(fmt::format("step {}", step_));
    watch.begin(first && order_.keep_first_step);
    reduced_elements_ = 0;
    const auto start = arrived_ = Clock::now();
    pass({.at = At::stepping, .model = &*instance_.model, .stream = &stream_, .group = group_.get()});
    nsa::train::StepReport report = trainer.step();
    pass({.at = At::stepped, .model = &*instance_.model, .report = &report});
    StepSeen seen;
    seen.step = report.step;
    seen.loss = report.loss;
    seen.norm = report.grad_norm;
    seen.lr = report.lr;
    seen.tokens = report.tokens;
    seen.seconds = report.seconds;
    seen.stop = std::string(nsa::train::to_string(report.stop));
    seen.anomaly = report.anomaly;
    seen.culprit = report.rank;
    seen.reduced_elements = reduced_elements_;
    seen.reduction_s = trainer.overlap().reducing_s;
    seen.overlapped_s = trainer.overlap().overlapped_s;
    seen.own_seconds = std::chrono::duration<double>(arrived_ - start).count();
    watch.take(seen);
    const std::lock_guard lock(mutex_);
    if (report.stop != nsa::train::Stop::end_of_data) record_.step(seen);
    return report.stop == nsa::train::Stop::none;
  }

  // Seconds of an all-reduce by its elements, the median of five after one that is not counted.
  Json time_collectives() {
    Json figures = Json::object();
    if (!group_) return figures;
    for (const std::int64_t elements : order_.reduce_elements) {
      at::Tensor tensor = at::ones({elements}, at::TensorOptions(device_).dtype(at::kFloat));
      std::vector<double> seconds;
      for (int i = 0; i < 6; ++i) {
        const auto start = Clock::now();
        group_->sum(tensor, "timed");
        if (device_.is_cuda()) (void)tensor[0].item<float>();
        if (i > 0) seconds.push_back(base::seconds_since(start));
      }
      figures["all_reduce_s"][std::to_string(elements)] = base::median(seconds);
    }
    return figures;
  }

  RankError what_it_means(const std::exception& error) {
    RankError told{"other", error.what(), Json::object()};
    const auto* of_ranks = dynamic_cast<const parallel::Error*>(&error);
    if (of_ranks == nullptr) return told;
    if (dynamic_cast<const parallel::Unreachable*>(&error) != nullptr) told.kind = "unreachable";
    if (dynamic_cast<const parallel::PortTaken*>(&error) != nullptr) told.kind = "port_taken";
    if (dynamic_cast<const parallel::RankAbsent*>(&error) != nullptr) told.kind = "absent";
    if (dynamic_cast<const parallel::RankTwice*>(&error) != nullptr) told.kind = "twice";
    if (dynamic_cast<const parallel::NotBuilt*>(&error) != nullptr) told.kind = "not_built";
    if (dynamic_cast<const parallel::PeerDied*>(&error) != nullptr) told.kind = "peer_died";
    if (const auto* late = dynamic_cast<const parallel::Timeout*>(&error)) {
      told.kind = "timeout";
      told.details["collective"] = late->name;
      told.details["sequence"] = late->sequence;
    }
    if (const auto* differ = dynamic_cast<const parallel::Disagreement*>(&error)) {
      told.kind = "disagreement";
      told.details["fact"] = is_parameter(differ->subject) ? step_ < 0 ? "weights" : "gradient" : differ->subject;
      told.details["subject"] = differ->subject;
    }
    told.details["ranks"] = of_ranks->ranks;
    if (!stacks_.empty()) told.details["stacks"] = stacks_;
    return told;
  }

  const Subject& subject_;
  const Order& order_;
  parallel::World world_;
  nsa::Config config_;
  RankFacts facts_;
  at::Device device_ = at::kCPU;
  Instance instance_;
  std::shared_ptr<nsa::train::BatchStream> stream_;
  std::shared_ptr<parallel::Group> group_;
  std::int64_t step_ = -1;
  std::int64_t reduced_elements_ = 0;
  Clock::time_point arrived_;
  std::string moment_, stacks_;
  std::mutex mutex_;
  RecordWriter record_;
};

}  // namespace

int run_rank(const Subject& subject, const Order& order, const parallel::World& world) {
  return Rank(subject, order, world).run();
}

std::optional<int> rank_verb(int argc, char** argv, const Subject& subject, const std::vector<Planted>& faults) {
  if (argc < 2 || argv[1] != kRankVerb) return std::nullopt;
  try {
    if (argc != 3) throw std::invalid_argument("needed: ORDER");
    const Order order = read_order(argv[2]);
    at::set_num_threads(order.threads);
    for (const std::string& name : order.planted)
      for (const Planted& fault : faults)
        if (fault.name == name) fault.plant({order.run_folder, order.run_id});
    return run_rank(subject, order, parallel::world_of(base::environment()));
  } catch (const std::exception& error) {
    std::cerr << kRankVerb << ": " << error.what() << std::endl;
    return 2;
  }
}

}  // namespace suites::distributed_ranks
