#include "nsa/parallel/meeting.hpp"

#include <c10/util/Exception.h>
#include <c10/util/Flags.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <signal.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <future>
#include <thread>

#include "base/text.hpp"
#include "nsa/parallel/diagnosis.hpp"
#include "nsa/parallel/patient_store.hpp"
#include "nsa/parallel/store_server.hpp"

C10_DECLARE_int(caffe2_log_level);  // of c10d's own words too

namespace nsa::parallel {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string reason_of(const std::exception& error) {
  const auto* torchs = dynamic_cast<const c10::Error*>(&error);
  return base::first_line(torchs != nullptr ? torchs->what_without_backtrace() : error.what());
}

// c10d tells of every lost connection, with a backtrace. What is lost is this room's to tell.
void quiet_c10d(bool it_may_speak) {
  constexpr int kErrors = 2;
  if (!it_may_speak) FLAGS_caffe2_log_level = kErrors;
}

// A peer that is gone is an error of the next write to it; by default it would be the end of this process.
void survive_broken_pipes() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

std::string who_i_am() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
  return fmt::format("process {} on {}", ::getpid(), host.data());
}

// What `make` gives, or an error when it takes longer. c10d's time limits are those of each of its tries, and none
// where something else accepts and never answers; its thread is then left behind, for a process that ends.
StorePointer within(milliseconds longest, std::function<StorePointer()> make) {
  auto promise = std::make_shared<std::promise<StorePointer>>();
  auto made = promise->get_future();
  std::thread([promise, make = std::move(make)] {
    try {
      promise->set_value(make());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (made.wait_for(longest) != std::future_status::ready)
    throw std::runtime_error("nothing answers there, or what answers is no store");
  return made.get();
}

// "", or why the name of a host is none.
std::string why_unknown(const std::string& host) {
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, nullptr, &found);
  if (error == 0) ::freeaddrinfo(found);
  return error == 0 ? "" : fmt::format("{}: {}", host, ::gai_strerror(error));
}

StorePointer connect(const World& world, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(world.port);
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return within(timeout, [address = world.address, options]() -> StorePointer {
      return c10::make_intrusive<c10d::TCPStore>(address, options);
    });
  } catch (const std::exception& error) {
    const std::string unknown = why_unknown(world.address);
    throw Unreachable(fmt::format(
        "rank {}: no store at {}:{} within {:.0f} s ({}): {}", world.rank, world.address, world.port,
        std::chrono::duration<double>(timeout).count(), unknown.empty() ? reason_of(error) : unknown,
        world.origin == World::Origin::slurm || world.origin == World::Origin::torchrun
            ? "is rank 0 started, on that host, and is the port open between the hosts? MASTER_ADDR, MASTER_PORT"
            : "is the starter alive?"));
  }
}

std::string key_of(const char* what, int rank) { return fmt::format("{}/{}", what, rank); }

void throw_if_troubled(c10d::Store& store) {
  const auto trouble = look_up(store, kTroubleKey);
  if (!trouble) return;
  const Trouble told = trouble_of(*trouble);
  if (told.kind == "twice") throw RankTwice(told.why, told.ranks);
  throw PeerDied(fmt::format("the ranks did not meet: {}", told.why), told.ranks);
}

// One process a rank: the second that says so is refused, and all others are told.
void claim_rank(c10d::Store& store, const World& world) {
  const std::string mine = key_of("who", world.rank), me = fmt::format("{}|{}", world.size, who_i_am());
  if (store.add(key_of("claims", world.rank), 1) == 1) return store.set(mine, me);
  // Whoever claimed it first may not have said yet who it is.
  auto first = look_up(store, mine);
  for (int tries = 0; !first && tries < 20; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    first = look_up(store, mine);
  }
  const std::string what = fmt::format("rank {} is there twice: {} and {}", world.rank,
                                       first ? first->substr(first->find('|') + 1) : "another process", who_i_am());
  store.compareSet(kTroubleKey, "", to_text(Trouble{"twice", {world.rank}, what}));
  throw RankTwice(what, {world.rank});
}

void refuse_other_sizes(c10d::Store& store, const World& world) {
  for (int rank = 0; rank < world.size; ++rank) {
    const std::string who = look_up(store, key_of("who", rank)).value_or("");
    const std::string size = who.substr(0, who.find('|'));
    if (size == std::to_string(world.size)) continue;
    const std::string what =
        fmt::format("rank {} was started as one of {} ranks, rank {} as one of {}", rank, size, world.rank, world.size);
    // The other one waits for ranks that will not come, and asks for trouble a few times a second.
    store.compareSet(kTroubleKey, "", to_text(Trouble{"failed", {rank}, what}));
    if (!world.store_is_served && world.rank == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    throw Disagreement(what, {rank}, "world size");
  }
}

void await_all(c10d::Store& store, const GroupOptions& options) {
  const World& world = options.world;
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(world.size));
  for (int rank = 0; rank < world.size; ++rank) keys.push_back(key_of("who", rank));
  const auto between = [&] {
    if (options.alive) options.alive();
    throw_if_troubled(store);
  };
  // Where all are there at once, one of them may be there twice.
  if (await_keys(store, keys, options.timeout, between)) return throw_if_troubled(store);
  std::vector<int> absent;
  for (int rank = 0; rank < world.size; ++rank)
    if (!look_up(store, keys[static_cast<std::size_t>(rank)])) absent.push_back(rank);
  if (absent.empty()) return;  // in the last moment
  throw RankAbsent(fmt::format("rank {}: {} {} of {} did not arrive at {}:{} within {:.0f} s", world.rank,
                               absent.size() == 1 ? "rank" : "ranks", fmt::join(absent, ", "), world.size,
                               world.address, world.port, std::chrono::duration<double>(options.timeout).count()),
                   absent);
}

}  // namespace

StorePointer serve_store(int port, bool local_only) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  try {
    return c10::make_intrusive<c10d::TCPStore>(local_only ? "127.0.0.1" : "localhost", options);
  } catch (const std::exception& error) {
    throw PortTaken(
        fmt::format("no store can be served at port {} of this machine: another run, or another rank 0, may be "
                    "there ({}); MASTER_PORT chooses another",
                    port, reason_of(error)),
        {0});
  }
}

std::string prefix_of(const World& world) { return fmt::format("nsa/{}/", world.attempt); }

namespace {

Meeting meet_all(const GroupOptions& options) {
  const World& world = options.world;
  if (world.size < 1 || world.rank < 0 || world.rank >= world.size)
    throw base::EnvironmentInvalid({fmt::format("rank {} of {}: a rank is 0 to size - 1", world.rank, world.size)});
  StorePointer server;
  if (!world.store_is_served && world.rank == 0) server = serve_store(world.port, false);
  World there = world;
  if (server) there.address = "localhost";
  const std::string prefix = prefix_of(world);
  const auto connection = [&]() -> StorePointer {
    return c10::make_intrusive<c10d::PrefixStore>(prefix, connect(there, options.timeout));
  };
  const auto patient = [&]() -> StorePointer {
    return c10::make_intrusive<c10d::PrefixStore>(
        prefix, c10::make_intrusive<PatientStore>(connect(there, options.timeout), options.timeout));
  };
  Meeting meeting;
  meeting.store = server ? StorePointer(c10::make_intrusive<c10d::PrefixStore>(prefix, server)) : patient();
  meeting.watching = patient();
  claim_rank(*meeting.store, world);
  await_all(*meeting.store, options);
  refuse_other_sizes(*meeting.store, world);
  meeting.backend = c10::make_intrusive<c10d::PrefixStore>("backend/", connection());
  return meeting;
}

}  // namespace

Meeting meet(const GroupOptions& options) {
  quiet_c10d(options.world.c10d_speaks);
  survive_broken_pipes();
  try {
    return meet_all(options);
  } catch (const c10::DistError& error) {
    throw PeerDied(fmt::format("the ranks did not meet: the store at {}:{} was lost ({})", options.world.address,
                               options.world.port, reason_of(error)),
                   {});
  }
}

std::optional<std::string> look_up(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  return store.get_to_str(key);
}

bool await_keys(c10d::Store& store, const std::vector<std::string>& keys, milliseconds longest,
                const std::function<void()>& between) {
  constexpr milliseconds kSlowest{50}, kBetween{250};
  const auto start = Clock::now();
  auto told = start;
  milliseconds pause{1};
  while (!store.check(keys)) {
    const auto now = Clock::now();
    if (now - start > longest) return false;
    if (between && now - told >= kBetween) {
      between();
      told = now;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 3 / 2 + milliseconds(1), kSlowest);
  }
  return true;
}

struct StoreServer::Inside {
  StorePointer store;
  int port = 0;
};

StoreServer::StoreServer(bool c10d_speaks) : inside_(std::make_unique<Inside>()) {
  quiet_c10d(c10d_speaks);
  inside_->store = serve_store(0, true);
  inside_->port = dynamic_cast<c10d::TCPStore&>(*inside_->store).getPort();
}
StoreServer::~StoreServer() = default;
int StoreServer::port() const { return inside_->port; }

void StoreServer::tell_death(int rank, const std::string& how) {
  World world;  // of attempt 0, as the starter makes them
  c10d::PrefixStore store(prefix_of(world), inside_->store);
  store.compareSet(kTroubleKey, "", to_text(Trouble{"died", {rank}, how}));
}

}  // namespace nsa::parallel
