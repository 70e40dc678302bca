#include "nsa/train/run/ranks.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <torch/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <system_error>
#include <thread>

#include "base/environment.hpp"
#include "base/launch.hpp"
#include "base/stop_signals.hpp"
#include "base/streams.hpp"
#include "nsa/parallel/starter.hpp"
#include "nsa/parallel/store_server.hpp"
#include "nsa/train/deal.hpp"
#include "nsa/train/files.hpp"

namespace nsa::train {

namespace {

using std::chrono::milliseconds;

constexpr double kUnwatched_s = 1800;  // without train.hang_timeout_s a rank waits for this long
// Of train.hang_timeout_s, for the others: whoever waits tells more than the watchdog of whoever hangs.
constexpr double kWaitShare = 0.8;
constexpr std::chrono::seconds kGraceBeyond{20};

// The command line of this process, with the program itself in front.
std::vector<std::string> own_words() {
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) throw DeviceError("--nproc: /proc/self/cmdline cannot be read, and the ranks cannot be started");
  words.front() = std::filesystem::read_symlink("/proc/self/exe");
  return words;
}

milliseconds timeout_of(const TrainConfig& config) {
  const double seconds = config.hang_timeout_s > 0 ? kWaitShare * config.hang_timeout_s : kUnwatched_s;
  return milliseconds(static_cast<std::int64_t>(1e3 * seconds));
}

int cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(CPU_COUNT(&set), 1) : 1;
}

// What arrived and was not passed on yet, by kind. In the starter.
std::array<std::atomic<int>, 65> arrived_signals{};
static_assert(std::atomic<int>::is_always_lock_free);
void note_signal(int signal) { ++arrived_signals[static_cast<std::size_t>(signal)]; }

class PassedOn {
 public:
  PassedOn() {
    for (std::size_t i = 0; i < base::kStopSignals.size(); ++i) {
      const int signal = base::kStopSignals[i];
      sigaction(signal, nullptr, &before_[i]);
      if (base::stays_ignored(signal)) continue;
      struct sigaction action {};
      action.sa_handler = note_signal;
      action.sa_flags = SA_RESTART;
      sigemptyset(&action.sa_mask);
      sigaction(signal, &action, nullptr);
    }
  }
  ~PassedOn() {
    for (std::size_t i = 0; i < base::kStopSignals.size(); ++i) sigaction(base::kStopSignals[i], &before_[i], nullptr);
  }
  PassedOn(const PassedOn&) = delete;
  PassedOn& operator=(const PassedOn&) = delete;

  [[nodiscard]] static std::optional<int> next() {
    for (const int signal : base::kStopSignals)
      if (auto& count = arrived_signals[static_cast<std::size_t>(signal)]; count > 0) {
        --count;
        return signal;
      }
    return std::nullopt;
  }

 private:
  std::array<struct sigaction, base::kStopSignals.size()> before_{};
};

bool is_crash(int signal) {
  return signal == SIGSEGV || signal == SIGABRT || signal == SIGFPE || signal == SIGBUS || signal == SIGILL;
}

// The first that has a reason of its own.
ExitCode code_of(const std::vector<parallel::RankEnd>& ends) {
  for (const auto& end : ends) {
    if (end.well() || end.ended_by_us) continue;
    if (end.passed_on) return end.value == SIGINT ? ExitCode::interrupted : ExitCode::terminated;
    if (end.by_signal) return is_crash(end.value) ? static_cast<ExitCode>(128 + end.value) : ExitCode::peer;
    if (end.value != static_cast<int>(ExitCode::peer)) return static_cast<ExitCode>(end.value);
  }
  const bool all_well = std::all_of(ends.begin(), ends.end(), [](const auto& end) { return end.well(); });
  return all_well ? ExitCode::finished : ExitCode::peer;
}

void refuse_missing_gpus(const Options& options, int ranks) {
  if (options.device == DeviceChoice::cpu) return;
  const int gpus = torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0;
  if (gpus == 0 && options.device == DeviceChoice::automatic) return;
  if (gpus < ranks)
    throw DeviceError(fmt::format(
        "--nproc {}: there are {} GPUs here, and each rank needs its own; --device cpu goes without", ranks, gpus));
}

}  // namespace

parallel::World world_of_run(const Options& options) {
  const auto environment = base::environment();
  const bool is_rank = environment.contains("RANK") || environment.contains("WORLD_SIZE");
  if (options.nproc && !is_rank) return {};  // Slurm may have started the one that starts the others
  parallel::World world;
  try {
    world = parallel::world_of(environment);
  } catch (const base::EnvironmentInvalid& invalid) {
    throw UsageError(invalid.what());
  }
  if (options.nproc && (world.origin != parallel::World::Origin::nproc || world.size != *options.nproc))
    throw UsageError(
        fmt::format("--nproc {}: {} already say(s) that this process is a rank of {}: leave --nproc out, or "
                    "unset them",
                    *options.nproc, fmt::join(parallel::variables_of_a_world(environment), " "), world.size));
  if (const std::string alone = base::alone_in_allocation(environment); !alone.empty())
    base::tell("nsa-train: note: " + alone);
  return world;
}

bool is_starter(const Options& options, const parallel::World& world) {
  return options.nproc && world.origin == parallel::World::Origin::alone;
}

ExitCode start_ranks(const Options& options, const Config& config) {
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): is_starter() has seen it; else it throws
  const int count = static_cast<int>(options.nproc.value());
  if (const auto reason = deal_refusal(config.train, count); !reason.empty()) throw UsageError("--nproc: " + reason);
  refuse_missing_gpus(options, count);
  const PassedOn signals;
  parallel::StoreServer store(parallel::c10d_speaks(base::environment()));
  std::vector<parallel::RankProgram> programs;
  for (int rank = 0; rank < count; ++rank) {
    parallel::World world;
    world.rank = world.local_rank = rank;
    world.size = world.local_size = count;
    world.address = "127.0.0.1";
    world.port = store.port();
    parallel::RankProgram program;
    program.argv = own_words();
    program.environment = parallel::environment_of(world);
    programs.push_back(std::move(program));
  }
  // Not SIGTERM: the kernel may send it once for each thread of this process, and a second one means impatience.
  parallel::Ranks ranks(programs, /*on_orphaned=*/SIGUSR1);
  parallel::WatchOptions watch;
  watch.grace = timeout_of(config.train) + kGraceBeyond;
  watch.signal_to_pass_on = PassedOn::next;
  watch.ended = [&](const parallel::RankEnd& end) {
    if (!end.well()) store.tell_death(end.rank, parallel::describe(end));
    if (end.by_signal) base::err("nsa-train: {}\n", parallel::describe(end));
  };
  return code_of(parallel::watch(ranks, watch));
}

Rank join(const parallel::World& world, const Config& config, const Options& options,
          const parallel::GroupSeams& seams) {
  Rank rank;
  rank.world = world;
  rank.activity = std::make_shared<Activity>();
  rank.may_write = std::make_shared<bool>(false);
  if (world.origin == parallel::World::Origin::alone) return rank;
  if (const auto reason = deal_refusal(config.train, world.size); !reason.empty()) throw UsageError(reason);
  share_cores(world);
  parallel::GroupOptions group;
  group.world = world;
  const bool gpu = options.device != DeviceChoice::cpu && torch::cuda::is_available();
  if (gpu) group.device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(world.local_rank));
  if (gpu && world.local_rank >= static_cast<int>(torch::cuda::device_count()))
    throw DeviceError(fmt::format("rank {} is number {} on this machine, which has {} GPUs", world.rank,
                                  world.local_rank, torch::cuda::device_count()));
  if (const std::string why = gpu ? "" : parallel::why_no_interface(world); !why.empty()) throw UsageError(why);
  group.timeout = timeout_of(config.train);
  group.check_collectives = false;  // but for the first step
  const auto activity = rank.activity;
  group.phase = [activity](std::string_view name) { activity->phase(name); };
  group.alive = [activity] { activity->pulse(); };
  group.doing = [activity] { return activity->look().phase; };
  group.keep = [folder = folder_of(options.out, world.rank), may = rank.may_write](const std::string& text) {
    if (!*may) return base::err("{}\n", text);
    try {
      base::write_whole(folder / "stacks_ranks.txt", text);
    } catch (const std::exception& error) {
      base::err("nsa-train: the stacks of all ranks could not be written: {}\n", error.what());
    }
  };
  group.seams = seams;
  rank.group = parallel::Group::join(group);
  return rank;
}

std::filesystem::path folder_of(const std::filesystem::path& out, int rank) {
  return rank == 0 ? out : out / "ranks" / fmt::format("rank_{}", rank);
}

void share_cores(const parallel::World& world) {
  if (base::environment().contains("OMP_NUM_THREADS")) return;
  const int all = static_cast<int>(std::thread::hardware_concurrency()), mine = cores();
  const bool bound = world.origin == parallel::World::Origin::slurm && mine < all;  // Slurm has shared them out
  at::set_num_threads(bound ? mine : std::max(mine / world.local_size, 1));
}

}  // namespace nsa::train
