// The thread that watches, and what a rank does when a wait has failed: it asks all ranks where they stand, and each
// answers from its own watching thread, whatever its training thread is stuck in.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/stacks.hpp"
#include "base/streams.hpp"
#include "nsa/parallel/inside.hpp"
#include "nsa/parallel/patient_store.hpp"
#include "nsa/parallel/starter.hpp"

namespace nsa::parallel {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{250}, kForAnswers{4'000}, kForNews{3'000}, kForDiagnosis{8'000};
// After trouble is known, for the training thread to meet it; and how much later than the backend this thread ends a
// wait.
constexpr std::chrono::seconds kToFaceIt{60}, kLate{2};
constexpr milliseconds kToBreakOff{10'000}, kGlance{100}, kForFlight{1'000}, kForGiving{2'000};

// Whoever serves the store.
std::string server_of(const World& world) {
  if (!world.store_is_served) return "rank 0, which served it,";
  return world.origin == World::Origin::nproc ? "the starter, which served it," : "torchrun's agent, which served it,";
}

std::string who_is_silent(const World& world) {
  if (!world.store_is_served) return "rank 0, which serves it, is stopped, or its machine cannot be reached";
  if (world.origin != World::Origin::nproc) return "torchrun's agent, which serves it, is stopped or out of reach";
  const pid_t starter = ::getppid();
  return fmt::format("the starter (process {}), which serves it, {}", starter,
                     is_stopped(starter) ? "is stopped (SIGSTOP)" : "is not stopped, and busy or hung");
}

std::string answer_key(int rank) { return fmt::format("state/{}", rank); }

}  // namespace

Group::Inside::Inside(const GroupOptions& given)
    : options(given), meeting(meet(given)), processes(make_processes(meeting.backend, given)), began(Clock::now()) {
  sigset_t all, before;  // signals are for the thread that trains
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  watcher = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Group::Inside::~Inside() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    over = true;
  }
  wake.notify_all();
  watcher.join();
}

void Group::Inside::watch() {
  std::unique_lock<std::mutex> lock(mutex);
  while (!wake.wait_for(lock, kLook, [this] { return over; })) {
    lock.unlock();
    look();
    lock.lock();
  }
}

void Group::Inside::look() {
  if (!trouble()) look_at_gpu();
  const auto open = ring.open();
  const double waits = open ? now_s() - open->record.began_s : 0;
  const double longest = std::chrono::duration<double>(options.timeout).count() + kLate.count();
  if (open && waits < longest && options.alive) options.alive();
  try {
    if (!trouble() && !store_lost) {
      if (const auto told = look_up(*meeting.watching, kTroubleKey)) learn(trouble_of(*told));
      store_silent = false;
      if (open && waits > longest) declare({"waits", {options.world.rank}, "the backend has not ended it"});
    }
  } catch (const StoreSilent&) {  // perhaps it will answer again
    store_silent = true;
  } catch (const std::exception&) {
    store_lost = true;  // its server is dead: what follows shows in the collectives
  }
  if (trouble()) {
    answer();
    break_off();
  }
  end_if_stuck();
}

void Group::Inside::end_if_stuck() {
  std::unique_lock<std::mutex> lock(mutex);
  if (!known || faced || Clock::now() - known_since < std::min<milliseconds>(options.timeout, kToFaceIt)) return;
  faced = true;
  lock.unlock();
  end_by_force("this rank does not come to an end by itself, and is ended");
}

void Group::Inside::end_by_force(const std::string& what) {
  const Trouble told = trouble().value_or(Trouble{});
  if (options.give_up) return options.give_up(fmt::format("{}; {}", told.why, what));
  base::err("rank {}: {}; {}\n", options.world.rank, told.why, what);
  ::_exit(told.kind == "died" || told.kind == "failed" ? 13 : 6);
}

void Group::Inside::look_at_gpu() {
  if (!options.device.is_cuda()) return;
  (void)gpu.within(kGlance, [all = own_ring, since = began] { all->look(base::seconds_since(since)); });
}

std::string Group::Inside::flight() {
  if (!options.device.is_cuda()) return "";
  const auto text = std::make_shared<std::string>();
  const bool told = gpu.within(kForFlight, [text] {
    try {
      *text = flight_record();
    } catch (const std::exception& error) {
      *text = error.what();
    }
  });
  return told ? *text : "its flight recorder does not answer";
}

// A sum of NCCL that one rank breaks off may end on another one as if it were whole: that one would say that it has
// been through (three H200: it was named beside the rank that hung). So all answer first.
void Group::Inside::let_all_answer() {
  const auto told = trouble();
  if (!told || told->kind != "waits") return;
  try {
    (void)await_answers(*meeting.watching, kForAnswers);
  } catch (const std::exception&) {  // nobody reads an answer then
  }
  const std::lock_guard<std::mutex> lock(mutex);
  known_since = Clock::now();  // nobody is let go before
}

void Group::Inside::break_off() {
  if (!options.device.is_cuda() && !options.seams.break_off) return;
  std::call_once(broken_off, [this] {
    let_all_answer();
    ring.freeze();
    const auto longest = std::min(options.timeout, kToBreakOff);
    const bool done =
        breaker.within(longest, [backend = processes.backend, instead = options.seams.break_off, given = giving] {
          try {
            const std::unique_lock<std::timed_mutex> lock(*given, kForGiving);
            instead ? instead() : backend->abort();
          } catch (const std::exception&) {  // of the other end, which is gone; the GPU is told first
          }
        });
    if (!done)
      end_by_force(
          fmt::format("what the GPU was given could not be broken off within {:.0f} s, and this rank ends "
                      "without another checkpoint",
                      std::chrono::duration<double>(longest).count()));
  });
}

void Group::Inside::learn(const Trouble& told) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (known) return;
  known = told;
  known_since = Clock::now();
}

void Group::Inside::answer() {
  bool asked = false;  // nobody wants to know where the others are when he knows who is lost
  {
    const std::lock_guard<std::mutex> lock(mutex);
    asked = !std::exchange(answered, true) && known && known->kind == "waits";
  }
  if (asked) {
    look_at_gpu();
    try {
      meeting.watching->set(answer_key(options.world.rank), to_text(my_state()));
    } catch (const std::exception&) {
      store_lost = true;
    }
  }
}

std::optional<Trouble> Group::Inside::trouble() const {
  const std::lock_guard<std::mutex> lock(mutex);
  return known;
}

void Group::Inside::declare(const Trouble& mine) noexcept {
  try {
    learn(trouble_of(meeting.store->compareSet(kTroubleKey, "", to_text(mine))));
  } catch (const std::exception&) {
    learn(mine);  // the store is gone
  }
}

RankState Group::Inside::my_state() {
  RankState state;
  state.rank = options.world.rank;
  state.answered = true;
  if (options.doing) state.doing = options.doing();
  if (const auto open = ring.open()) {
    state.open = open->record;
    state.sent = open->sent;
  }
  state.last = ring.last();
  state.records = ring.all();
  state.stacks = base::readable_stacks(base::all_stacks());
  if (const std::string of_nccl = flight(); !of_nccl.empty()) state.stacks += "NCCL: " + of_nccl + "\n";
  return state;
}

std::vector<std::string> Group::Inside::await_answers(c10d::Store& store, milliseconds longest) {
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(options.world.size));
  for (int rank = 0; rank < options.world.size; ++rank) keys.push_back(answer_key(rank));
  (void)await_keys(store, keys, longest);
  return keys;
}

std::vector<RankState> Group::Inside::states(milliseconds longest) {
  std::vector<RankState> all;
  try {
    const std::vector<std::string> keys = await_answers(*meeting.store, longest);
    for (int rank = 0; rank < options.world.size; ++rank)
      all.push_back(state_of(rank, look_up(*meeting.store, keys[static_cast<std::size_t>(rank)]).value_or("")));
  } catch (const StoreSilent&) {
    store_silent = true;
    all.clear();
  } catch (const std::exception&) {  // the store is gone: nobody's state is known
    store_silent = false;
    all.clear();
  }
  return all;
}

void Group::Inside::throw_if_troubled() {
  const std::optional<Trouble> told = trouble();
  if (!told) return;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    faced = true;
  }
  if (told->kind == "waits") fail(/*timed_out=*/true, told->why);
  break_off();
  if (told->kind == "twice") throw RankTwice(told->why, told->ranks);
  throw PeerDied(told->why, told->ranks);
}

// Nobody can be asked: all that is known is what became of the store.
void Group::Inside::throw_store_is_lost(const CollectiveRecord& record, double seconds, const std::string& told) {
  const World& world = options.world;
  const auto culprits = world.store_is_served ? std::vector<int>{} : std::vector<int>{0};
  if (!store_silent)
    throw PeerDied(fmt::format("rank {}: collective {} failed ({}), and the store at {}:{} is gone: {} has died",
                               world.rank, describe(record), told, world.address, world.port, server_of(world)),
                   culprits);
  throw Timeout(fmt::format("rank {} waited {:.1f} s in collective {}, and the store at {}:{} gives no answer: {}",
                            world.rank, seconds, describe(record), world.address, world.port, who_is_silent(world)),
                culprits, record.sequence, record.name);
}

// One rank, the first, looks into it, and all throw its sentence.
void Group::Inside::fail(bool timed_out, const std::string& told) {
  const std::vector<int> me = {options.world.rank};
  // A rank that ends tells so, or its starter does, a moment after its connections are closed.
  for (const auto until = Clock::now() + kForNews; !timed_out && !trouble() && !store_lost && Clock::now() < until;)
    std::this_thread::sleep_for(milliseconds(20));
  if (!trouble()) declare({"waits", me, told});
  {
    const std::lock_guard<std::mutex> lock(mutex);
    faced = true;
  }
  const Trouble first = trouble().value();  // NOLINT(bugprone-unchecked-optional-access): declare() learns one
  if (first.kind != "waits") throw_if_troubled();
  answer();
  if (first.ranks != me) {
    break_off();
    throw_their_diagnosis();
  }
  const auto open = ring.open();
  const CollectiveRecord record = open ? open->record : ring.last().value_or(CollectiveRecord{});
  const double seconds = now_s() - record.began_s;
  const auto found = states(kForAnswers);
  break_off();
  if (found.empty()) throw_store_is_lost(record, seconds, told);
  Diagnosis diagnosis = diagnose(options.world.rank, record, seconds, found);
  if (!timed_out) diagnosis.what = fmt::format("{} ({})", diagnosis.what, told);
  if (options.keep) options.keep(full_text(diagnosis.what, found));
  try {
    const Trouble text{timed_out ? "timeout" : "gone", diagnosis.culprits, diagnosis.what};
    meeting.store->set(kDiagnosisKey, to_text(text));
  } catch (const std::exception&) {  // the others look for themselves
  }
  if (!timed_out) throw PeerDied(diagnosis.what, diagnosis.culprits);
  throw Timeout(diagnosis.what, diagnosis.culprits, record.sequence, record.name);
}

// Returns when there is none.
void Group::Inside::throw_their_diagnosis() {
  Trouble all;
  try {
    if (!await_keys(*meeting.store, {kDiagnosisKey}, kForDiagnosis)) return;
    all = trouble_of(meeting.store->get_to_str(kDiagnosisKey));
  } catch (const std::exception&) {
    return;
  }
  if (all.kind == "gone") throw PeerDied(all.why, all.ranks);
  const CollectiveRecord last = ring.last().value_or(CollectiveRecord{});
  throw Timeout(all.why, all.ranks, last.sequence, last.name);
}

}  // namespace nsa::parallel
