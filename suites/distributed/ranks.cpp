#include "suites/distributed/ranks.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>

#include "base/environment.hpp"
#include "base/fd.hpp"
#include "nsa/parallel/starter.hpp"
#include "nsa/parallel/store_server.hpp"
#include "nsa/parallel/world.hpp"
#include "suites/distributed/rank.hpp"

namespace suites::distributed_ranks {

namespace {

namespace parallel = nsa::parallel;
using SteadyClock = std::chrono::steady_clock;

base::Fd log_of(const Order& order, int rank) {
  const std::string file = order.output_of(rank).string();
  base::Fd log(open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (log.get() < 0) throw std::system_error(errno, std::generic_category(), file);
  return log;
}

parallel::World world_of_rank(int rank, int size, int port) {
  parallel::World world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  world.address = "127.0.0.1";
  world.port = port;
  world.origin = parallel::World::Origin::nproc;
  world.store_is_served = true;
  return world;
}

// For the others, after each that ended badly: to find out by themselves, and to ask each other where they stand.
constexpr std::chrono::seconds kGrace{8};

std::chrono::duration<double> seconds(double value) { return std::chrono::duration<double>(value); }

// How long those that are left are waited for after one ended badly. Not at all where it found just them missing; but
// one that looks for the others in vain has to say so, and its own search may have begun later, or end later.
std::chrono::duration<double> grace(const Order& order, int ended, const std::set<int>& left, int size) {
  for (const int rank : left)
    if (read_record(order.record_of(rank), rank, size).last_moment() == kLooking)
      return kGrace + seconds(order.timeout_s);
  const RankRecord record = read_record(order.record_of(ended), ended, size);
  if (!record.error || (record.error->kind != "timeout" && record.error->kind != "absent")) return kGrace;
  const auto ranks = record.error->details.value("ranks", std::vector<int>());
  const std::set<int> missing(ranks.begin(), ranks.end());
  return std::includes(missing.begin(), missing.end(), left.begin(), left.end()) ? seconds(0) : kGrace;
}

// Waits until all have ended, and ends them all where they do not: when only those are left that the others found
// missing, some time after one that ended badly, and when time is up.
std::vector<parallel::RankEnd> wait_for_all(parallel::Ranks& ranks, parallel::StoreServer& store, const Order& order,
                                            const Launch& launch) {
  auto deadline =
      SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(seconds(60 + 4 * order.timeout_s));
  std::set<int> left;
  for (int rank = 0; rank < launch.size; ++rank) left.insert(rank);
  bool killed = false;
  std::vector<parallel::RankEnd> ends;
  while (!left.empty()) {
    if (const auto end = ranks.wait(std::chrono::milliseconds(100))) {
      ends.push_back(*end);
      left.erase(end->rank);
      if (!end->well() && !end->ended_by_us) {
        if (end->by_signal) store.tell_death(end->rank, parallel::describe(*end));
        deadline = SteadyClock::now() +
                   std::chrono::duration_cast<SteadyClock::duration>(grace(order, end->rank, left, launch.size));
      }
    }
    if (launch.progress) launch.progress();
    if (SteadyClock::now() <= deadline) continue;
    if (killed) break;  // the kernel does not let go of them
    ranks.kill();
    killed = true;
    deadline = SteadyClock::now() + std::chrono::seconds(10);
  }
  return ends;
}

}  // namespace

std::vector<Ended> run_ranks(const Order& order, const Launch& launch) {
  write_order(order);
  for (int rank = 0; rank < launch.size; ++rank) {  // of an earlier run of this order
    std::filesystem::remove(order.record_of(rank));
    std::filesystem::remove(order.tensors_of(rank));
  }
  const std::filesystem::path program =
      launch.program.empty() ? std::filesystem::read_symlink("/proc/self/exe") : launch.program;
  parallel::StoreServer store(parallel::c10d_speaks(base::environment()));
  std::vector<parallel::RankProgram> programs;
  std::vector<base::Fd> logs;
  for (int rank = 0; rank < launch.size; ++rank) {
    logs.push_back(log_of(order, rank));
    programs.push_back({.argv = {program.string(), std::string(kRankVerb), order.file().string()},
                        .environment = parallel::environment_of(world_of_rank(rank, launch.size, store.port())),
                        .output = logs.back().get(),
                        .error = logs.back().get()});
  }
  parallel::Ranks ranks(programs, SIGKILL);
  if (launch.started) launch.started(ranks.pids());
  std::vector<Ended> all;
  for (const parallel::RankEnd& end : wait_for_all(ranks, store, order, launch))
    all.push_back({.record = read_record(order.record_of(end.rank), end.rank, launch.size),
                   .by_signal = end.by_signal,
                   .value = end.value,
                   .ended_by_us = end.ended_by_us,
                   .seconds = end.after_s});
  for (int rank = 0; rank < launch.size; ++rank)
    if (std::none_of(all.begin(), all.end(), [&](const Ended& end) { return end.record.rank == rank; }))
      all.push_back(
          {.record = read_record(order.record_of(rank), rank, launch.size), .value = -1, .ended_by_us = true});
  std::sort(all.begin(), all.end(), [](const Ended& a, const Ended& b) { return a.record.rank < b.record.rank; });
  return all;
}

Records records_of(const std::vector<Ended>& ends) {
  Records records;
  for (const Ended& end : ends) records.push_back(end.record);
  return records;
}

std::vector<std::string> left_over(const Order& order) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos || pid == std::to_string(getpid())) continue;
    std::ostringstream text;  // empty where the process ends just now
    text << std::ifstream(entry.path() / "cmdline", std::ios::binary).rdbuf();
    const std::string words = text.str();
    if (words.find(order.file().string()) != std::string::npos)
      found.push_back(fmt::format("{} {}", pid, words.substr(0, words.find('\0'))));
  }
  return found;
}

}  // namespace suites::distributed_ranks
