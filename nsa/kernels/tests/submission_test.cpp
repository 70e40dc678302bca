// A call's launches as one graph: what is collected, which graph it is, which nodes are set, what goes one by one. Over
// a stand-in for the CUDA runtime that writes down what it is asked.
#include "nsa/kernels/launch/submission.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Asked = std::vector<std::string>;

const char kKernels[8] = {};  // their addresses stand for kernels
cudaStream_t other_stream() {
  static char place;
  return reinterpret_cast<cudaStream_t>(&place);
}

struct StandIn final : LaunchRuntime {
  Asked asked;
  bool captures = false;
  int current = 0, destroyed = 0, alive = 0;
  std::vector<std::string> refuses;  // what begins with one of them
  cudaError_t told(const std::string& what) {
    for (const std::string& begin : refuses)
      if (what.starts_with(begin)) return cudaErrorInvalidValue;
    asked.push_back(what);
    return cudaSuccess;
  }
  static std::string text(const LaunchCall& call) {
    std::string all = std::string(1, static_cast<char>('a' + (static_cast<const char*>(call.kernel) - kKernels))) +
                      "<" + std::to_string(call.ctas.x) + ">" + (call.early ? "early" : "") + "(";
    for (std::size_t i = 0; i < call.values.size(); ++i) {
      int value = 0;
      EXPECT_EQ(call.sizes[i], sizeof value);
      std::memcpy(&value, call.values[i], sizeof value);
      all += (i > 0 ? " " : "") + std::to_string(value);
    }
    return all + ")";
  }
  bool may_collect(cudaStream_t) override { return !captures; }
  int device() override { return current; }
  cudaError_t launch(const LaunchCall& call, cudaStream_t) override { return told("launch " + text(call)); }
  cudaError_t make(const Chain& chain, ChainGraph& graph) override {
    std::string all = "make";
    for (std::size_t i = 0; i < chain.size(); ++i) all += " " + text(chain[i]);
    graph.executable = reinterpret_cast<cudaGraphExec_t>(this);
    ++alive;
    return told(all);
  }
  cudaError_t set(const ChainGraph&, std::size_t node, const LaunchCall& call) override {
    return told("set " + std::to_string(node) + " " + text(call));
  }
  cudaError_t start(const ChainGraph&, cudaStream_t stream) override {
    return told(stream ? "start on the other stream" : "start");
  }
  void destroy(ChainGraph& graph) override {
    if (graph.executable) --alive, ++destroyed;
    graph = {};
  }
  void forget_error() override { asked.emplace_back("forget"); }
  const char* describe(cudaError_t) override { return "no such luck"; }
  Asked take() { return std::exchange(asked, {}); }
};

void put(int kernel, std::vector<int> values, unsigned ctas = 1, bool early = false, cudaStream_t stream = nullptr) {
  std::vector<void*> pointers;
  pointers.reserve(values.size());
  for (int& value : values) pointers.push_back(&value);
  const std::vector<std::size_t> sizes(values.size(), sizeof(int));
  put_on(stream, {kKernels + kernel, ctas, 32, 0, early, pointers, sizes});
}

struct Submissions : testing::Test {
  StandIn runtime;
  ChainGraphs graphs{runtime};
  Asked run(const std::function<void()>& launches, cudaStream_t stream = nullptr) {
    Submission all(stream, runtime, graphs);
    launches();
    all.submit();
    return runtime.take();
  }
  // So often that the next time there is a graph.
  void warm(const std::function<void()>& launches, cudaStream_t stream = nullptr) {
    for (int i = 0; i < ChainGraphs::kMakeAt; ++i) static_cast<void>(run(launches, stream));
  }
};

TEST_F(Submissions, NothingIsLaunchedBeforeSubmit) {
  Submission all(nullptr, runtime, graphs);
  put(0, {1});
  put(1, {2});
  EXPECT_THAT(runtime.take(), IsEmpty());
  all.submit();
  EXPECT_THAT(runtime.take(), ElementsAre("launch a<1>(1)", "launch b<1>(2)"));
  all.submit();
  EXPECT_THAT(runtime.take(), IsEmpty());
}

TEST_F(Submissions, TheThirdTimeItIsAGraphThatIsKept) {
  const auto chain = [] { put(0, {1}), put(1, {2, 3}, 7), put(2, {4}, 1, true); };
  const auto single = ElementsAre("launch a<1>(1)", "launch b<7>(2 3)", "launch c<1>early(4)");
  EXPECT_THAT(run(chain), single);
  EXPECT_THAT(run(chain), single);
  EXPECT_THAT(run(chain), ElementsAre("make a<1>(1) b<7>(2 3) c<1>early(4)", "start"));
  EXPECT_THAT(run(chain), ElementsAre("start"));
  EXPECT_EQ(graphs.submitted().graphs, 2);
  EXPECT_EQ(graphs.submitted().one_by_one, 2);
  EXPECT_EQ(graphs.submitted().made, 1);
}

TEST_F(Submissions, OnlyNodesThatDifferAreSet) {
  const auto chain = [](int x, unsigned ctas) { put(0, {1}), put(1, {x, 3}), put(2, {4}, ctas); };
  warm([&] { chain(2, 1); });
  EXPECT_THAT(run([&] { chain(5, 1); }), ElementsAre("set 1 b<1>(5 3)", "start"));
  EXPECT_THAT(run([&] { chain(5, 1); }), ElementsAre("start"));
  EXPECT_THAT(run([&] { chain(2, 9); }), ElementsAre("set 1 b<1>(2 3)", "set 2 c<9>(4)", "start"));
}

TEST_F(Submissions, AnotherShapeStreamOrDeviceIsAnotherGraph) {
  warm([] { put(0, {1}), put(1, {2}); });
  EXPECT_THAT(run([] { put(0, {1}), put(2, {2}); }), ElementsAre("launch a<1>(1)", "launch c<1>(2)"));
  EXPECT_THAT(run([] { put(0, {1}); }), ElementsAre("launch a<1>(1)"));
  EXPECT_THAT(run([] { put(0, {1}), put(1, {2}, 1, true); }), ElementsAre("launch a<1>(1)", "launch b<1>early(2)"));
  const auto other = [] { put(0, {1}, 1, false, other_stream()), put(1, {2}, 1, false, other_stream()); };
  EXPECT_THAT(run(other, other_stream()), ElementsAre("launch a<1>(1)", "launch b<1>(2)"));
  warm(other, other_stream());
  EXPECT_THAT(run(other, other_stream()), ElementsAre("start on the other stream"));
  runtime.current = 1;
  EXPECT_THAT(run([] { put(0, {1}), put(1, {2}); }), ElementsAre("launch a<1>(1)", "launch b<1>(2)"));
  runtime.current = 0;
  EXPECT_THAT(run([] { put(0, {1}), put(1, {2}); }), ElementsAre("start"));
}

TEST_F(Submissions, TheGraphThatWasNotUsedForTheLongestTimeGoes) {
  const auto of = [](int i) { return [i] { put(i % 8, {i}), put(i / 8, {i}), put(0, {i}); }; };
  for (int i = 0; i < ChainGraphs::kMost; ++i) warm(of(i));
  EXPECT_EQ(runtime.alive, ChainGraphs::kMost);
  EXPECT_THAT(run(of(0)), ElementsAre("start"));  // used: the second is now the oldest
  warm(of(ChainGraphs::kMost));
  EXPECT_EQ(runtime.alive, ChainGraphs::kMost);
  EXPECT_EQ(runtime.destroyed, 1);
  EXPECT_THAT(run(of(0)), ElementsAre("start"));
  EXPECT_EQ(run(of(1)).size(), 3U);  // launches again
}

TEST_F(Submissions, AGraphLivesNoLongerThanItsThread) {
  {
    ChainGraphs own(runtime);
    for (int i = 0; i < ChainGraphs::kMakeAt; ++i) {
      Submission all(nullptr, runtime, own);
      put(0, {1});
      all.submit();
    }
    EXPECT_EQ(runtime.alive, 1);
  }
  EXPECT_EQ(runtime.alive, 0);
}

TEST_F(Submissions, EndCollectingLaunchesWhatWasCollectedAndWhatFollowsIsNot) {
  Submission all(nullptr, runtime, graphs);
  put(0, {1});
  end_collecting();
  EXPECT_THAT(runtime.take(), ElementsAre("launch a<1>(1)"));
  EXPECT_FALSE(name_collected("what is launched at once"));
  all.submit();
  EXPECT_THAT(runtime.take(), IsEmpty());
}

TEST_F(Submissions, ALaunchOnAnotherStreamComesAfterWhatWasCollected) {
  Submission all(nullptr, runtime, graphs);
  put(0, {1});
  put(1, {2}, 1, false, other_stream());  // the emulation's own runtime refuses it
  EXPECT_THAT(runtime.take(), ElementsAre("launch a<1>(1)"));
}

TEST_F(Submissions, AChainThatIsTooLongIsLaunchedOneByOne) {
  Submission all(nullptr, runtime, graphs);
  for (std::size_t i = 0; i < Submission::kLongest; ++i) put(0, {1});
  EXPECT_THAT(runtime.take(), IsEmpty());
  put(0, {1});
  EXPECT_EQ(runtime.take().size(), Submission::kLongest);
}

TEST_F(Submissions, NothingIsCollectedWhileTheStreamIsCaptured) {
  runtime.captures = true;
  const Submission all(nullptr, runtime, graphs);
  EXPECT_FALSE(all.collects());
  EXPECT_FALSE(name_collected("a kernel"));
}

TEST_F(Submissions, AnInnerOneIsTheOuterOnes) {
  EXPECT_THAT(run([&] {
                put(0, {1});
                {
                  Submission inner(nullptr, runtime, graphs);
                  EXPECT_FALSE(inner.collects());
                  put(1, {2});
                  inner.submit();
                }
                EXPECT_THAT(runtime.asked, IsEmpty());
                put(2, {3});
              }),
              ElementsAre("launch a<1>(1)", "launch b<1>(2)", "launch c<1>(3)"));
}

TEST_F(Submissions, AnExceptionLaunchesNothingAndTheNextOneIsWhole) {
  const auto broken = [] {
    put(0, {1});
    throw std::runtime_error("a plan that fails");
  };
  EXPECT_THROW(static_cast<void>(run(broken)), std::runtime_error);
  EXPECT_THAT(runtime.take(), IsEmpty());
  EXPECT_THAT(run([] { put(1, {2}); }), ElementsAre("launch b<1>(2)"));
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const LaunchError& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST_F(Submissions, ARefusedLaunchIsToldWithTheKernelsName) {
  const auto chain = [] {
    put(0, {1});
    name_collected("the first");
    put(1, {2});
    put(2, {3});
    name_collected("the others");
  };
  runtime.refuses = {"launch c"};
  const auto told = AllOf(HasSubstr("the others: "), HasSubstr("refused the launch"), HasSubstr("no such luck"));
  EXPECT_THAT(refusal([&] { static_cast<void>(run(chain)); }), told);
  runtime.refuses = {};
  warm(chain);
  runtime.refuses = {"start", "launch c"};  // a graph tells of no kernel: its launches do
  EXPECT_THAT(refusal([&] { static_cast<void>(run(chain)); }), told);
  EXPECT_EQ(graphs.submitted().refused, 0);  // it was the kernel's fault
}

TEST_F(Submissions, ARefusedGraphIsLaunchedOneByOneFromThenOnAndCounted) {
  const auto chain = [](int x) { return [x] { put(0, {x}), put(1, {2}); }; };
  for (const char* refuses : {"make", "start", "set 0"}) {
    SCOPED_TRACE(refuses);
    StandIn own;
    ChainGraphs all(own);
    const auto once = [&](int x) {
      Submission submission(nullptr, own, all);
      chain(x)();
      submission.submit();
      return own.take();
    };
    const bool sets = std::string(refuses) == "set 0";
    for (int i = 1; i < ChainGraphs::kMakeAt + (sets ? 1 : 0); ++i) static_cast<void>(once(1));
    own.refuses = {refuses};
    const Asked asked = once(5);
    ASSERT_GE(asked.size(), 3U);
    EXPECT_THAT(Asked(asked.end() - 3, asked.end()), ElementsAre("forget", "launch a<1>(5)", "launch b<1>(2)"));
    EXPECT_EQ(own.alive, 0);
    own.refuses = {};
    EXPECT_THAT(once(5), ElementsAre("launch a<1>(5)", "launch b<1>(2)"));
    EXPECT_EQ(all.submitted().refused, 1);
    EXPECT_EQ(all.submitted().why, "no such luck");
  }
}

TEST_F(Submissions, ALaunchPastTheCollectionIsAnError) {
  EXPECT_THROW(static_cast<void>(run([] {
                 put(0, {1});
                 name_collected("the first");
                 name_collected("one by <<<>>>");
               })),
               std::logic_error);
}

}  // namespace
}  // namespace nsa::kernels
