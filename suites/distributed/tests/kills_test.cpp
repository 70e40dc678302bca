// kill -9 of each process of a run in turn, the starter too: the run ends, the rank is named, nothing is left.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "nsa/tests/needs_gloo.hpp"
#include "suites/codes.hpp"
#include "suites/distributed/trial.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace suites::distributed_ranks {
namespace {

constexpr int kRanks = 3;

class Kills : public testing::Test {
 protected:
  Kills() : settings_(suites::tests::default_settings(distributed)), context_(settings_), folder_(context_, "kills") {
    settings_.set("distributed.timeout_s", "5", "test");
    const Trial trial{.ranks = kRanks, .steps = 100'000, .rows = 6, .whole_batches = 2000};
    order_ = make_order(Subject(std::make_shared<Seams>()), context_, trial, folder_.path());
  }

  // Whether every rank has made its second step.
  [[nodiscard]] bool under_way() const {
    for (int rank = 0; rank < kRanks; ++rank)
      if (read_record(order_.record_of(rank), rank, kRanks).steps.size() < 2) return false;
    return true;
  }
  void wait_until_under_way() const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!under_way() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  [[nodiscard]] std::vector<std::string> left_after(std::chrono::seconds longest) const {
    const auto end = std::chrono::steady_clock::now() + longest;
    while (!left_over(order_).empty() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return left_over(order_);
  }

  harness::Settings settings_;
  suites::tests::RecordingContext context_;
  TrialFolder folder_;
  Order order_;
};

TEST_F(Kills, OfEachRankAreToldByItsName) {
  NSA_NEEDS_GLOO();
  for (int victim = 0; victim < kRanks; ++victim) {
    std::thread killer;
    const std::vector<Ended> ends =
        run_ranks(order_, {.size = kRanks, .started = [&](const std::vector<pid_t>& pids) {
                             killer = std::thread([this, pid = pids[static_cast<std::size_t>(victim)]] {
                               wait_until_under_way();
                               (void)kill(pid, SIGKILL);
                             });
                           }});
    killer.join();
    const Disagreements told = judge_ends(ends);
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].code, codes::kRankDied) << told[0].message;
    EXPECT_EQ(told[0].evidence["ranks"], Json::array({victim})) << told[0].message;
    EXPECT_EQ(left_over(order_), std::vector<std::string>{});
  }
}

TEST_F(Kills, OfTheStarterLeaveNoRank) {
  NSA_NEEDS_GLOO();
  write_order(order_);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe"), file = order_.file(),
                    size = std::to_string(kRanks);
  const std::vector<std::string> words = {self, "__starter", file, size};
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t starter = -1;
  ASSERT_EQ(posix_spawn(&starter, self.c_str(), nullptr, nullptr, argv.data(), environ), 0);
  wait_until_under_way();
  EXPECT_GE(left_over(order_).size(), static_cast<std::size_t>(kRanks)) << "they are not even running";
  ASSERT_EQ(kill(starter, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(starter, &status, 0), starter);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(left_after(std::chrono::seconds(10)), std::vector<std::string>{});
}

}  // namespace
}  // namespace suites::distributed_ranks
