// The same of launches: streams and forks, memory that the runtime sets, kernels that begin early. Compiled as the
// kernels are.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "nsa/kernels/launch/fork.hpp"
#include "nsa/kernels/tests/races.hpp"

namespace nsa::kernels::emulation {
namespace {

using Kernel = std::function<void()>;
void run(const Kernel& kernel, cudaStream_t stream = nullptr, bool early = false) {
  Grid grid(dim3(2), 64, 1024, stream);
  grid.early = early;
  launch(nullptr, grid, kernel);
}
// The first as usual, the others early.
void run_chain(const std::vector<Kernel>& kernels) {
  for (std::size_t i = 0; i < kernels.size(); ++i) run(kernels[i], nullptr, i > 0);
}
testing::AssertionResult seen(const std::function<void()>& launches, const std::string& what) {
  try {
    launches();
  } catch (const Error& error) {
    return emulation::seen(std::vector<std::string>{error.what()}, what);
  }
  return testing::AssertionFailure() << "nothing was seen";
}

// Threads of CTA 0 have a word each.
struct Words {
  std::vector<int> words = std::vector<int>(64), copies = std::vector<int>(64);
  Kernel write = [this] {
    if (blockIdx.x == 0) words[own()] = 1;
  };
  Kernel read = [this] {
    if (blockIdx.x == 0) copies[own()] = words[own()];
  };
  Kernel read_early = [this] {
    if (blockIdx.x == 0) static_cast<void>(*static_cast<volatile int*>(&words[own()]));
    griddepcontrol_wait();
  };
  Kernel read_late = [this] {
    griddepcontrol_wait();
    read();
  };
};
TEST(Launches, OnTwoStreams) {
  Words x, y;
  const auto both = [](const Kernel& main, const Kernel& side) {
    return [=] {
      Fork fork(nullptr, second_stream());
      run(main);
      run(side, fork.side());
    };
  };
  both(x.write, y.write)();
  both(x.read, [&] {
    if (blockIdx.x == 0) y.copies[own()] = x.words[own()];
  })();
  EXPECT_TRUE(seen(both(x.write, x.write), "is written by launch"));
  EXPECT_TRUE(seen(both(x.write, x.read), "is written by launch"));
  EXPECT_TRUE(seen(both(x.read, x.write), "is read by launch"));
}
TEST(Launches, AForkBeginsAfterMainAndIsJoined) {
  Words x;
  const auto fork_and_write = [&](bool join_first) {
    return [&x, join_first] {
      Fork fork(nullptr, second_stream());
      run(x.read, fork.side());
      if (join_first) fork.join();
      run(x.write);
    };
  };
  run(x.write);
  fork_and_write(true)();
  EXPECT_TRUE(seen(fork_and_write(false), "is read by launch"));
  run(x.write);  // an exception has joined too
  const auto use_after_the_join = [&] { run(x.read, second_stream()); };
  EXPECT_TRUE(seen(use_after_the_join, "on the second stream without a fork"));
}
TEST(Launches, MemoryThatTheRuntimeSets) {
  Words x;
  const auto set_on = [&](cudaStream_t stream) {
    return [&x, stream] {
      Fork fork(nullptr, second_stream());
      cudaMemsetAsync(x.words.data(), 0, 64 * sizeof(int), stream);
      run(x.read, fork.side());
    };
  };
  set_on(second_stream())();
  EXPECT_TRUE(seen(set_on(nullptr), "is written by launch"));
}
TEST(Launches, ThatBeginEarly) {
  Words x, y;
  run(x.write);
  run_chain({y.write, x.read_early, x.read_early});  // what was there before the chain
  run_chain({x.write, x.read_late, y.read_early});
  const auto seen_too_soon = [](const std::vector<Kernel>& kernels) {
    return seen([&] { run_chain(kernels); }, "before griddepcontrol_wait()");
  };
  EXPECT_TRUE(seen_too_soon({x.write, x.read_early}));
  EXPECT_TRUE(seen_too_soon({x.write, y.read_late, x.read_early}));  // may have begun with the one before
  run(x.write);
  run(x.read_early);  // begins as usual
}
// A kernel that waits before it lets the next one begin: what was before it has ended then, but not itself.
TEST(Launches, ThatLetTheNextBeginWhenTheyHaveWaited) {
  Words x, y;
  const Kernel patient = [&] {
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    y.read();
  };
  const Kernel hasty = [&] {
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    y.read();
  };
  const Kernel writes = [&] {
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
    x.write();
  };
  run_chain({x.write, patient, x.read_early});
  run_chain({x.write, patient, hasty, x.read_early});
  const auto seen_too_soon = [](const std::vector<Kernel>& kernels) {
    return seen([&] { run_chain(kernels); }, "before griddepcontrol_wait()");
  };
  EXPECT_TRUE(seen_too_soon({x.write, hasty, x.read_early}));
  EXPECT_TRUE(seen_too_soon({y.write, writes, x.read_early}));
  EXPECT_TRUE(seen_too_soon({y.write, writes, hasty, x.read_early}));
}
TEST(Launches, ThatBeginEarlyWaitInEveryBlock) {
  Words x;
  const auto early = [](const Kernel& kernel) { return [=] { run_chain({[] {}, kernel}); }; };
  const auto one_waits = [] {
    if (blockIdx.x == 0) griddepcontrol_wait();
  };
  const auto waits_late = [&] {
    x.write();
    griddepcontrol_wait();
  };
  EXPECT_TRUE(seen(early(one_waits), "ends without griddepcontrol_wait()"));
  EXPECT_TRUE(seen(early(waits_late), "writes before griddepcontrol_wait()"));
}
// A copy that is asked for early reads early.
TEST(Launches, CopiesThatBeginEarly) {
  alignas(16) int source[64] = {};
  const auto write = [&] {
    if (blockIdx.x == 0) source[own()] = 1;
  };
  const auto copy = [&](bool wait_first) {
    return [&source, wait_first] {
      if (wait_first) griddepcontrol_wait();
      if (own() == 0) cp_async(shared_address(shared()), source);
      cp_async_commit();
      griddepcontrol_wait();
      cp_async_wait(0);
    };
  };
  run_chain({write, copy(true)});
  EXPECT_TRUE(seen([&] { run_chain({write, copy(false)}); }, "before griddepcontrol_wait()"));
}

}  // namespace
}  // namespace nsa::kernels::emulation
