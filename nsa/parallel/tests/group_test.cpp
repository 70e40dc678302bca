// A group over real processes (rank_main.cpp): sums, gradients, and every way in which one can fail the others.
#include "nsa/parallel/group.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "nsa/parallel/backend.hpp"
#include "nsa/parallel/starter.hpp"
#include "nsa/parallel/store_server.hpp"
#include "nsa/tests/needs_gloo.hpp"
#include "nsa/tests/scratch.hpp"

namespace {

using namespace nsa::parallel;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Outcome {
  RankEnd end;
  std::string out, err;
  [[nodiscard]] std::string line(const std::string& beginning) const {
    std::istringstream stream(out);
    for (std::string one; std::getline(stream, one);)
      if (one.starts_with(beginning)) return one;
    return "";
  }
};

std::string content(const std::string& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

World world_of_rank(int rank, int size, int port) {
  World world;
  world.rank = world.local_rank = rank;
  world.size = world.local_size = size;
  world.address = "127.0.0.1";
  world.port = port;
  return world;
}

// The environment of torchrun, so that rank 0 serves the store itself.
std::map<std::string, std::string> unserved(const World& world) {
  auto variables = environment_of(world);
  variables.erase("NPROC_STORE_SERVED");
  return variables;
}

// By rank.
std::vector<Outcome> play(const std::vector<std::map<std::string, std::string>>& environments, const std::string& role,
                          milliseconds timeout, StoreServer* store = nullptr) {
  const nsa::fixtures::Scratch scratch;
  std::vector<RankProgram> programs;
  const auto file = [&](std::size_t rank, const char* what) {
    return (scratch.path() / (std::to_string(rank) + what)).string();
  };
  for (std::size_t rank = 0; rank < environments.size(); ++rank) {
    RankProgram program{{NSA_PARALLEL_RANK, role, std::to_string(timeout.count())}, environments[rank]};
    program.output = ::open(file(rank, ".out").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    program.error = ::open(file(rank, ".err").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    programs.push_back(program);
  }
  Ranks ranks(programs);
  WatchOptions watching;
  watching.grace = std::min<milliseconds>(timeout, std::chrono::seconds(4)) + std::chrono::seconds(8);
  watching.ended = [&](const RankEnd& end) {
    if (store != nullptr && !end.well()) store->tell_death(end.rank, describe(end));
  };
  std::vector<Outcome> outcomes(environments.size());
  for (const RankEnd& end : watch(ranks, watching)) outcomes[static_cast<std::size_t>(end.rank)].end = end;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    ::close(programs[rank].output);
    ::close(programs[rank].error);
    outcomes[rank].out = content(file(rank, ".out"));
    outcomes[rank].err = content(file(rank, ".err"));
  }
  return outcomes;
}

std::vector<Outcome> play(int size, const std::string& role, milliseconds timeout = std::chrono::seconds(60)) {
  StoreServer store;
  std::vector<std::map<std::string, std::string>> environments;
  for (int rank = 0; rank < size; ++rank)
    environments.push_back(environment_of(world_of_rank(rank, size, store.port())));
  return play(environments, role, timeout, &store);
}

double number_of(const Outcome& outcome, const std::string& gradient) {
  std::istringstream words(outcome.line("gradient " + gradient));
  std::string word;
  double value = 0;
  words >> word >> word >> value;
  return value;
}

// Where a port is free now, and taken while the object lives if it is to be.
class Port {
 public:
  explicit Port(bool taken) : fd_(::socket(AF_INET6, SOCK_STREAM, 0)) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    socklen_t size = sizeof address;
    (void)::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    (void)::listen(fd_, 1);
    (void)::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    number = ntohs(address.sin6_port);
    if (!taken) ::close(std::exchange(fd_, -1));
  }
  ~Port() {
    if (fd_ >= 0) ::close(fd_);
  }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  int number = 0;

 private:
  int fd_;
};

TEST(Group, SumsAndGathersOverAllRanks) {
  NSA_NEEDS_GLOO();
  for (const Outcome& rank : play(3, "sums")) {
    EXPECT_TRUE(rank.end.well()) << rank.out << rank.err;
    EXPECT_THAT(rank.out, AllOf(HasSubstr("sum fourth 6\n"), HasSubstr("record 4 'fourth' (1000 x Float)"),
                                HasSubstr("gathered rank 0,rank 1,rank 2\n"), HasSubstr("all true, none false\n"),
                                HasSubstr("gathered again 0,again 1,again 2\n")));
  }
}

// One rank is the measure: it takes all rows. The sums of three are in another order.
TEST(GradientSums, AreThoseOfAllRows) {
  NSA_NEEDS_GLOO();
  const auto alone = play(1, "gradients"), three = play(3, "gradients"), accumulated = play(3, "accumulates"),
             with_none = play(3, "none");
  ASSERT_TRUE(alone[0].end.well()) << alone[0].out;
  for (const auto* ranks : {&three, &accumulated}) {
    for (const Outcome& rank : *ranks) {
      ASSERT_TRUE(rank.end.well()) << rank.out << rank.err;
      EXPECT_NE(rank.line("buckets 2"), "") << "more than one, in a fixed order";
      for (const char* layer : {"layer.0", "layer.1", "layer.2"}) {
        EXPECT_NEAR(number_of(rank, layer) / number_of(alone[0], layer), 1, 1e-6);
        EXPECT_EQ(rank.line(std::string("gradient ") + layer), (*ranks)[0].line(std::string("gradient ") + layer))
            << "bit for bit";
      }
    }
  }
  for (const Outcome& rank : with_none) {
    EXPECT_TRUE(rank.end.well()) << "a rank without a row takes part: " << rank.out << rank.err;
    EXPECT_EQ(rank.line("gradient layer.0"), with_none[0].line("gradient layer.0"));
  }
}

// Rank 1 comes to its gradients in another order, and sums in the same.
TEST(GradientBuckets, AreSummedInOneOrder) {
  NSA_NEEDS_GLOO();
  const auto alone = play(1, "buckets");
  ASSERT_TRUE(alone[0].end.well()) << alone[0].out;
  for (const char* role : {"buckets", "buckets accumulate"}) {
    const auto three = play(3, role);
    for (const Outcome& rank : three) {
      ASSERT_TRUE(rank.end.well()) << role << rank.out << rank.err;
      for (const char* layer : {"layer.0", "layer.1", "layer.2"}) {
        EXPECT_NEAR(number_of(rank, layer) / number_of(alone[0], layer), 1, 1e-6) << role;
        EXPECT_EQ(rank.line(std::string("gradient ") + layer), three[0].line(std::string("gradient ") + layer))
            << role << ", bit for bit";
      }
    }
    EXPECT_EQ(three[0].line("came"), "came layer.2,layer.1,layer.0") << role;
    EXPECT_EQ(three[1].line("came"), "came layer.0,layer.1,layer.2") << role;
    EXPECT_EQ(three[0].line("summed"),
              "summed gradients bucket 0 after 1,gradients bucket 1 after 2,gradients bucket 2 after 3")
        << role << ": while backward goes on";
    EXPECT_EQ(three[1].line("summed"),
              "summed gradients bucket 0 after 3,gradients bucket 1 after 3,gradients bucket 2 after 3")
        << role;
  }
}

TEST(GradientBuckets, WhoseParametersHaveNoGradientAreNamed) {
  NSA_NEEDS_GLOO();
  const auto ranks = play(3, "buckets skip");
  EXPECT_THAT(ranks[1].line("error"), StartsWith("error Disagreement 1: rank 1: backward gave no gradient to layer.1"));
  for (const int other : {0, 2})
    EXPECT_THAT(ranks[static_cast<std::size_t>(other)].line("error"), StartsWith("error PeerDied 1: rank 1 (pid "));
}

TEST(GradientBuckets, OfOtherSizesAreFoundBeforeTheyAreSummed) {
  NSA_NEEDS_GLOO();
  for (const Outcome& rank : play(3, "buckets of other sizes"))
    EXPECT_THAT(rank.line("error"), StartsWith("error Disagreement 1: collective 1: rank 1 calls sum 'gradients' of"))
        << rank.out << rank.err;
}

TEST(Group, SumsWithoutARecordAreForGpusAlone) {
  NSA_NEEDS_GLOO();
  EXPECT_EQ(play(1, "unrecorded")[0].line("other"), "other a sum that is not recorded, over gloo");
}

// Without a starter rank 0 serves the store, and leaves last.
TEST(Group, RankZeroServesTheStore) {
  NSA_NEEDS_GLOO();
  const Port port(false);
  for (const Outcome& rank :
       play({unserved(world_of_rank(0, 2, port.number)), unserved(world_of_rank(1, 2, port.number))}, "sums",
            milliseconds(60'000)))
    EXPECT_TRUE(rank.end.well()) << rank.out << rank.err;
}

TEST(Group, TheCauseIsNamedOnEveryRank) {
  NSA_NEEDS_GLOO();
  struct Case {
    const char *role, *line;
  };
  for (const Case& one :
       {Case{"shape",
             "error Disagreement 1: collective 3: rank 1 calls sum 'third' of 1001 x Float on cpu, the others"},
        Case{"dtype", "error Disagreement 1: collective 3: rank 1 calls sum 'third' of 1000 x Double"},
        Case{"facts", "error Disagreement 1: the ranks do not agree: seed of rank 1 is 8, of the others 7"},
        Case{"clock", "error Disagreement 1: the clock of rank 1 is +90.0 s from that of most ranks"},
        Case{"bit", "error Disagreement 1: weights: the bits of layer.2 are not those of the other ranks on rank 1"}})
    for (const Outcome& rank : play(3, one.role))
      EXPECT_THAT(rank.line("error"), StartsWith(one.line)) << rank.out << rank.err;
}

TEST(Group, ARankThatEndsIsNamedByTheOthers) {
  NSA_NEEDS_GLOO();
  struct Case {
    const char *role, *words;
  };
  for (const Case& one : {Case{"dies", "was killed by SIGKILL"}, Case{"fails", "rank 1 has ended: its disk is full"},
                          Case{"skips", "rank 1 (pid "}}) {
    const auto ranks = play(3, one.role);
    for (const int other : {0, 2})
      EXPECT_THAT(ranks[static_cast<std::size_t>(other)].line("error"),
                  AllOf(StartsWith("error PeerDied 1: "), HasSubstr(one.words)))
          << one.role;
    if (std::string(one.role) == "skips") {
      EXPECT_THAT(ranks[1].line("error"),
                  StartsWith("error Disagreement 1: rank 1: backward gave no gradient to layer.1"));
    }
  }
}

// Within the timeout and some seconds for the answers; the stacks are those of all that could give them.
// Its thread stands in the GPU's driver, and learns nothing itself.
TEST(Group, WhoWaitsForAGpuIsLetGoWhenARankIsLost) {
  NSA_NEEDS_GLOO();
  const Outcome freed = play(2, "gpu lets go").front();
  EXPECT_EQ(freed.end.value, 1) << freed.out << freed.err;
  EXPECT_LT(freed.end.after_s, 20);
  EXPECT_THAT(freed.out, AllOf(HasSubstr("broken off\n"), HasSubstr("error PeerDied 1: rank 1 (pid "),
                               HasSubstr("was killed by SIGKILL")));
}

TEST(Group, WhoseGpuDoesNotLetGoEndsByItself) {
  NSA_NEEDS_GLOO();
  const Outcome held = play(2, "gpu never lets go", milliseconds(1'500)).front();
  EXPECT_FALSE(held.end.by_signal) << held.out << held.err;
  EXPECT_EQ(held.end.value, 13) << held.out << held.err;
  EXPECT_THAT(held.err, AllOf(HasSubstr("rank 0: rank 1 (pid "), HasSubstr("was killed by SIGKILL"),
                              HasSubstr("could not be broken off within 2 s")));
}

TEST(Group, AHangIsToldFromAStoppedRankAndFromOneInside) {
  NSA_NEEDS_GLOO();
  struct Case {
    const char *role, *words;
  };
  for (const Case& one :
       {Case{"outside", "rank 1 is outside of any collective; its last was 2 'second' (1000 x Float), in its phase"},
        Case{"inside", "rank 1 has begun it and sends nothing"}, Case{"stopped", "rank 1 gives no answer"},
        Case{"other", "rank 1 is in collective 3 'gather something'"},
        Case{"replay", "collective 3 'captured step' (1000 x Float): rank 1 is outside of any collective"}}) {
    const auto ranks = play(3, one.role, milliseconds(2'000));
    for (const int other : {0, 2}) {
      const Outcome& rank = ranks[static_cast<std::size_t>(other)];
      EXPECT_THAT(rank.line("error"), AllOf(StartsWith("error Timeout 1: "), HasSubstr("in collective 3 "),
                                            HasSubstr(one.words), Not(HasSubstr("rank 2 is"))))
          << one.role << rank.out;
      EXPECT_LT(rank.end.after_s, 60);
    }
    const std::string stacks = ranks[0].err + ranks[2].err + ranks[1].err;
    EXPECT_THAT(stacks, AllOf(HasSubstr("==== rank 0"), HasSubstr("==== rank 2"), HasSubstr("end of stacks")))
        << one.role;
    EXPECT_FALSE(ranks[1].end.well()) << one.role;
  }
}

// What one rank breaks off, another one may take for ended.
TEST(Group, NobodyBreaksOffBeforeAllHaveAnswered) {
  NSA_NEEDS_GLOO();
  const auto ranks = play(3, "slow answer", milliseconds(2'000));
  const auto when = [&](std::size_t rank, const std::string& what) {
    const std::string line = ranks[rank].line(what);
    return line.empty() ? std::nan("") : std::stod(line.substr(what.size()));
  };
  EXPECT_THAT(ranks[0].line("error"), HasSubstr("rank 1 has begun it and sends nothing")) << ranks[0].out;
  const double last = when(2, "answers ");
  for (const std::size_t other : {0U, 2U})
    EXPECT_GE(when(other, "broken off "), last) << "rank " << other << "\n" << ranks[other].out;
}

TEST(Group, WhoDoesNotArriveIsNamed) {
  const auto ranks = play(3, "late", milliseconds(2'000));
  for (const int other : {0, 2})
    EXPECT_THAT(ranks[static_cast<std::size_t>(other)].line("error"),
                AllOf(StartsWith("error RankAbsent 1: "), HasSubstr("rank 1 of 3 did not arrive")));
}

TEST(Group, OneRankTwice) {
  StoreServer store;
  const auto one = environment_of(world_of_rank(0, 2, store.port()));
  const auto ranks = play({one, one}, "sums", milliseconds(4'000));
  for (const Outcome& rank : ranks)
    EXPECT_THAT(rank.line("error"), StartsWith("error RankTwice 0: rank 0 is there twice: process ")) << rank.out;
}

// All names are there when the last rank comes, and one of them is there twice.
TEST(Group, OneRankTwiceIsFoundWhenTheLastOneComes) {
  StoreServer store;
  const auto zero = environment_of(world_of_rank(0, 2, store.port())),
             one = environment_of(world_of_rank(1, 2, store.port()));
  for (const Outcome& rank : play({zero, one, one}, "zero comes last", milliseconds(6'000))) {
    EXPECT_THAT(rank.line("error"), StartsWith("error RankTwice 1: rank 1 is there twice: process ")) << rank.out;
    EXPECT_EQ(rank.line("joined"), "");
  }
}

// Its connections stay open, and no answer comes out of them.
TEST(Group, AStoppedServerOfTheStoreIsNamed) {
  NSA_NEEDS_GLOO();
  const Port port(false);
  std::vector<std::map<std::string, std::string>> environments;
  for (int rank = 0; rank < 3; ++rank) environments.push_back(unserved(world_of_rank(rank, 3, port.number)));
  const auto ranks = play(environments, "server stops", milliseconds(2'000));
  for (const int other : {1, 2}) {
    const Outcome& rank = ranks[static_cast<std::size_t>(other)];
    EXPECT_THAT(rank.line("error"), AllOf(StartsWith("error Timeout 0: "), HasSubstr(" in collective 3 "),
                                          HasSubstr("gives no answer: rank 0, which serves it, is stopped")))
        << rank.out << rank.err;
    EXPECT_FALSE(rank.end.by_signal) << "it came to an end by itself";
  }
}

TEST(Group, OtherWorldSizes) {
  StoreServer store;
  const auto ranks =
      play({environment_of(world_of_rank(0, 2, store.port())), environment_of(world_of_rank(1, 3, store.port()))},
           "sums", milliseconds(2'000));
  EXPECT_THAT(ranks[0].line("error"),
              StartsWith("error Disagreement 1: rank 1 was started as one of 3 ranks, rank 0 as one of 2"));
  EXPECT_THAT(ranks[1].line("error"), StartsWith("error"));
}

TEST(Group, AStoreThatCannotBeReachedAndAPortInUse) {
  const Port free(false), taken(true);
  const auto ranks = play({unserved(world_of_rank(1, 2, free.number)), unserved(world_of_rank(0, 2, taken.number))},
                          "sums", milliseconds(2'000));
  EXPECT_THAT(ranks[0].line("error"), AllOf(StartsWith("error Unreachable"),
                                            HasSubstr("no store at 127.0.0.1:" + std::to_string(free.number))));
  EXPECT_THAT(ranks[1].line("error"),
              AllOf(StartsWith("error PortTaken 0"), HasSubstr("port " + std::to_string(taken.number)),
                    HasSubstr("MASTER_PORT")));
}

TEST(Group, SharedMemoryThatIsShort) {
  EXPECT_EQ(shared_memory_is_short("/tmp", 1), "");
  EXPECT_THAT(shared_memory_is_short("/tmp", std::uint64_t{1} << 60),
              AllOf(HasSubstr("/tmp has "), HasSubstr("--shm-size")));
  EXPECT_THAT(shared_memory_is_short("/no/such/folder", 1), HasSubstr("/no/such/folder cannot be used: No such file"));
}

}  // namespace
