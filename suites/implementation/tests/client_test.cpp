#include "suites/implementation/client.hpp"

#include <ATen/ATen.h>

#include <atomic>
#include <thread>

#include "suites/implementation/tests/support.hpp"

namespace suites::implementation::tests {
namespace client_test {

using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

class ClientTest : public PythonTest {
 protected:
  [[nodiscard]] Client::Options options(const std::string& changes = "") const {
    return {kPython, host(changes), adapter, Client::Seconds(60), Client::Seconds(60)};
  }
};

const nsa::Geometry kGeometry = {.l = 4, .d = 2, .l_sel = 4, .n_sel = 3, .w = 5};

Request window(std::vector<std::string> gradients = {}) {
  const auto one = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
  return {"attend_window",
          {{"q", one({1, 3, 4, 2})}, {"k", one({1, 3, 2, 2})}, {"v", one({1, 3, 2, 3})}},
          kGeometry,
          {},
          std::move(gradients)};
}

at::Tensor wanted_output(const Request& r) { return 3 * named(r.inputs, "v").repeat_interleave(2, 2); }

TEST_F(ClientTest, DescribesItselfOnce) {
  Client client(options());
  EXPECT_EQ(client.starts(), 0);
  const Description& first = client.describe();
  EXPECT_EQ(first.name, "fake");
  EXPECT_EQ(first.file, adapter.string());
  EXPECT_EQ(&client.describe(), &first);
  EXPECT_EQ(client.starts(), 1);
}

TEST_F(ClientTest, CallsAFunction) {
  Client client(options());
  const Request request = window();
  const Forward forward = client.forward(request);
  EXPECT_TRUE(at::equal(named(forward.outputs, "o"), wanted_output(request)));
  EXPECT_TRUE(at::allclose(named(forward.outputs, "lse"),
                           named(request.inputs, "q").sum(-1).transpose(1, 2).to(at::kFloat), 1e-5, 1e-6));
  EXPECT_FALSE(forward.graph);
  EXPECT_EQ(forward.seconds, 0.25);
  EXPECT_TRUE(forward.changed_inputs.empty());
  EXPECT_EQ(client.memory().graphs, 0);
  EXPECT_THAT(client.calls(), UnorderedElementsAre(Pair("attend_window", 1)));
}

TEST_F(ClientTest, KeepsAGraphAsLongAsItIsAskedTo) {
  Client client(options());
  const Request request = window({"q", "v"});
  const Forward forward = client.forward(request);
  ASSERT_TRUE(forward.graph);
  const Named cotangent = {{"o", at::ones({1, 3, 4, 3}, at::kDouble)}};
  for (const bool keep : {true, false}) {
    EXPECT_EQ(client.memory().graphs, 1);
    const Backward backward = client.backward(*forward.graph, cotangent, keep);
    ASSERT_EQ(backward.gradients.size(), 2U);
    EXPECT_FALSE(backward.gradients[0].second.defined());
    EXPECT_TRUE(at::equal(named(backward.gradients, "v"), at::full({1, 3, 2, 3}, 6.0, at::kDouble)));
    EXPECT_EQ(backward.seconds, 0.5);
  }
  EXPECT_EQ(client.memory().graphs, 0);
  EXPECT_EQ(error_of([&] { (void)client.backward(*forward.graph, cotangent, false); }).kind, "request");
}

TEST_F(ClientTest, GivesGraphsBackWithTheNextRequest) {
  Client client(options());
  const Forward one = client.forward(window({"v"})), two = client.forward(window({"v"}));
  EXPECT_EQ(client.memory().graphs, 2);
  client.release(*one.graph);
  EXPECT_EQ(client.memory().graphs, 1);
  client.release(*one.graph);  // the host does not know it any more
  client.release(*two.graph);
  EXPECT_EQ(client.memory().graphs, 0);
}

TEST_F(ClientTest, AGraphThatLeadsNowhereIsGivenBack) {
  Client client(options("DESCRIPTION['gradients'] = False\n"));
  EXPECT_FALSE(client.forward(window({"v"})).graph);
  EXPECT_EQ(client.memory().graphs, 0);
}

TEST_F(ClientTest, OutputsOfAnotherFormAreRefusedAndItGoesOn) {
  Client client(options(R"py(
class Wrong:
    def forward(self, call):
        return {"o": Tensor(call.x["q"].shape[:2])}
FUNCTIONS["attend_selected"] = Wrong()
)py"));
  Request request = window({"v"});
  request.function = "attend_selected";
  const auto error = error_of([&] { (void)client.forward(request); });
  EXPECT_EQ(error.kind, "shape");
  EXPECT_EQ(error.message, "attend_selected: o is fp64 [1, 3] on cpu; allowed: fp64 [1, 3, 4, 3]");
  EXPECT_EQ(client.memory().graphs, 0);
  EXPECT_EQ(client.starts(), 1);
  EXPECT_TRUE(client.calls().empty());
}

TEST_F(ClientTest, GradientsOfAnotherFormAreRefused) {
  Client client(options(R"py(
FUNCTIONS["attend_window"].backward = lambda call, d: {"v": Tensor([1])}
)py"));
  const Forward forward = client.forward(window({"v"}));
  const Named cotangent = {{"o", at::ones({1, 3, 4, 3}, at::kDouble)}};
  EXPECT_EQ(error_of([&] { (void)client.backward(*forward.graph, cotangent, false); }).message,
            "the gradients of attend_window: v is fp64 [1] on cpu; allowed: fp64 [1, 3, 2, 3]");
}

TEST_F(ClientTest, AnExceptionIsToldAndItGoesOn) {
  Client client(options("def fails(request): raise ValueError('no')\nDOES['seed'] = fails\n"));
  const auto error = error_of([&] { client.seed(1); });
  EXPECT_EQ(error.kind, "exception");
  EXPECT_EQ(error.message, "ValueError: no");
  (void)client.forward(window());
  EXPECT_EQ(client.starts(), 1);
}

constexpr const char* kDiesBySeed = R"py(
def dies(request):
    print("last words", request["seed"])
    os.kill(os.getpid(), request["seed"])
DOES["seed"] = dies
)py";

TEST_F(ClientTest, ADeadProcessIsStartedAgainWithoutItsGraphs) {
  Client client(options(kDiesBySeed));
  const Forward before = client.forward(window({"v"}));
  const auto death = error_of([&] { client.seed(SIGABRT); });
  EXPECT_EQ(death.kind, "crashed");
  EXPECT_THAT(death.output, testing::StartsWith("last words 6\nFatal Python error: Aborted\n"));
  client.release(*before.graph);
  const Named cotangent = {{"o", at::ones({1, 3, 4, 3}, at::kDouble)}};
  const auto gone = [&] { return error_of([&] { (void)client.backward(*before.graph, cotangent, false); }); };
  EXPECT_EQ(gone().kind, "crashed");
  EXPECT_EQ(client.starts(), 1);
  const Request request = window({"v"});
  EXPECT_TRUE(at::equal(named(client.forward(request).outputs, "o"), wanted_output(request)));
  EXPECT_EQ(client.starts(), 2);
  EXPECT_EQ(gone().message,
            "the graph of attend_window is gone with the process that kept it (crashed: killed by SIGABRT (Aborted))");
  EXPECT_EQ(client.memory().graphs, 1);
  EXPECT_EQ(client.starts(), 2);
}

TEST_F(ClientTest, ASilentProcessIsStartedAgain) {
  auto with = options("DOES['seed'] = lambda request: time.sleep(1000)\n");
  with.call = Client::Seconds(1);
  Client client(with);
  EXPECT_EQ(client.describe().name, "fake");
  EXPECT_EQ(error_of([&] { client.seed(1); }).message, "no answer within 1 s");
  EXPECT_EQ(client.memory().graphs, 0);
  EXPECT_EQ(client.starts(), 2);
}

TEST_F(ClientTest, ABrokenAnswerEndsTheProcess) {
  Client client(options("DOES['memory'] = lambda request: print('odd') or {'resident': 'much', 'graphs': 0}\n"));
  const auto error = error_of([&] { (void)client.memory(); });
  EXPECT_EQ(error.message, "answer to memory: resident is \"much\"; allowed: a whole number of 64 bits");
  EXPECT_EQ(error.output, "odd\n");
  (void)client.forward(window());
  EXPECT_EQ(client.starts(), 2);
}

TEST_F(ClientTest, AnErrorOfTheGpuEndsTheProcess) {
  Client client(options(R"py(
real = forward
def forward(one):
    if one["op"] != "attend_window":
        error(one, "cuda", "an illegal memory access was encountered", "AcceleratorError")
        forward(request())
    return real(one)
DOES["forward"] = forward
)py"));
  Request other = window();
  other.function = "attend_selected";
  EXPECT_EQ(error_of([&] { (void)client.forward(other); }).kind, "cuda");
  (void)client.forward(window());
  EXPECT_EQ(client.starts(), 2);
}

TEST_F(ClientTest, ThreeFailedStartsAreEnough) {
  Client client({"/no/such/python", "host.py", "adapter.py", Client::Seconds(60), Client::Seconds(60)});
  for (int i = 0; i < Client::kStarts; ++i)
    EXPECT_THAT(error_of([&] { (void)client.describe(); }).message, testing::EndsWith("No such file or directory"));
  const auto error = error_of([&] { (void)client.forward(window()); });
  EXPECT_EQ(error.kind, "start");
  EXPECT_THAT(error.message, testing::EndsWith("No such file or directory (given up after 3 starts)"));
  EXPECT_EQ(client.starts(), 3);
}

TEST_F(ClientTest, AStartIsWaitedForNoLongerThanSaid) {
  auto with = options("time.sleep(1000)\n");
  with.start = Client::Seconds(0.5);
  Client client(with);
  EXPECT_EQ(error_of([&] { (void)client.describe(); }).message, "no answer within 0.5 s");
}

TEST_F(ClientTest, WhatCannotBeImportedIsSaidEachTime) {
  Client client(
      options("while True: error(request(), 'import', 'No module named fla', 'ModuleNotFoundError', 'a.py:1')\n"));
  for (int i = 0; i < Client::kStarts + 2; ++i) {
    const auto error = error_of([&] { (void)client.describe(); });
    EXPECT_EQ(error.kind, "import");
    EXPECT_THAT(error.message, testing::StartsWith("ModuleNotFoundError: No module named fla"));
    EXPECT_EQ(error.traceback, "a.py:1");
  }
  EXPECT_EQ(client.starts(), Client::kStarts);
}

TEST_F(ClientTest, AnAdapterThatChangedIsNotTheOneThatWasDescribed) {
  Client client(options(std::string(kDiesBySeed) + "DESCRIPTION['version'] = str(os.getpid())\n"));
  (void)client.describe();
  (void)error_of([&] { client.seed(SIGKILL); });
  const auto error = error_of([&] { (void)client.memory(); });
  EXPECT_EQ(error.kind, "description");
  EXPECT_THAT(error.message, testing::ContainsRegex(
                                 "describes itself otherwise than before: version = \"[0-9]+\", it was \"[0-9]+\"$"));
}

TEST_F(ClientTest, SaysWhatIsAskedOfWhichProcessAsLongAsItIs) {
  Client client(options(kDiesBySeed));
  std::vector<std::string> asked;
  pid_t process = 0;
  client.on_ask([&](const std::string& what, pid_t pid) {
    asked.push_back(what);
    if (!what.empty()) process = pid;
  });
  (void)client.describe();
  const Forward forward = client.forward(window({"v"}));
  EXPECT_EQ(kill(process, 0), 0);
  (void)client.backward(*forward.graph, {{"o", at::ones({1, 3, 4, 3}, at::kDouble)}}, false);
  (void)error_of([&] { client.seed(SIGKILL); });  // it ends there, and the word is taken back all the same
  EXPECT_THAT(asked, testing::ElementsAre("the start and describe()", "", "attend_window", "",
                                          "the backward pass of attend_window", "", "the seed", ""));
}

TEST_F(ClientTest, ChangedInputsAreNamed) {
  Client client(options(R"py(
real = forward
DOES["forward"] = lambda request: {**real(request), "changed_inputs": ["q"]}
)py"));
  EXPECT_EQ(client.forward(window()).changed_inputs, (std::vector<std::string>{"q"}));
}

TEST_F(ClientTest, TimesAndMemory) {
  Client client(options());
  const double one = client.forward(window()).seconds;
  EXPECT_DOUBLE_EQ(client.seconds(), one);
  const double other = client.forward(window()).seconds;
  EXPECT_DOUBLE_EQ(client.seconds(), one + other);
  EXPECT_EQ(client.memory().resident, 4096);
  EXPECT_FALSE(client.memory().cuda_allocated);
  client.seed(7);
}

TEST_F(ClientTest, RequestsSayAllOfTheCall) {
  Client client(
      options("DOES['forward'] = lambda request: error(request, 'exception', json.dumps(request)) or "
              "forward(globals()['request']())\n"));
  Request request = window({"q"});
  request.cu_seqlens = at::tensor({0, 1, 3}, at::kInt);
  const Json seen = Json::parse(error_of([&] { (void)client.forward(request); }).message);
  EXPECT_EQ(seen["op"], "attend_window");
  EXPECT_EQ(seen["device"], "cpu");
  EXPECT_EQ(seen["geometry"], (Json{{"l", 4}, {"d", 2}, {"l_sel", 4}, {"n_sel", 3}, {"w", 5}}));
  EXPECT_EQ(seen["cu_seqlens"], (Json{0, 1, 3}));
  EXPECT_EQ(seen["gradients"], (Json{"q"}));
  EXPECT_EQ(seen["inputs"]["v"], (Json{{"dtype", "fp64"}, {"shape", {1, 3, 2, 3}}, {"at", 320}}));
  EXPECT_EQ(seen["room"], 320 + 192);
  EXPECT_GE(seen["arena"], 1 << 20);
}

TEST_F(ClientTest, ThreadsTakeTurns) {
  Client client(options());
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 10; ++j) {
        const Request request = window({"v"});
        const Forward forward = client.forward(request);
        if (at::equal(named(forward.outputs, "o"), wanted_output(request))) ++right;
        client.release(*forward.graph);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 60);
  EXPECT_EQ(client.memory().graphs, 0);
  EXPECT_EQ(client.starts(), 1);
}

}  // namespace client_test
}  // namespace suites::implementation::tests
