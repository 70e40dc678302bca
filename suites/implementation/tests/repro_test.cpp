#include "suites/implementation/repro.hpp"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <stdlib.h>

#include <chrono>
#include <fstream>
#include <numbers>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "harness/suite.hpp"
#include "nsa/reference/reference.hpp"
#include "suites/implementation/tests/support.hpp"

namespace suites::implementation::tests {
namespace repro_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const nsa::Geometry kGeometry = {.l = 4, .d = 2, .l_sel = 4, .n_sel = 3, .w = 5};
// Writes down what it is asked to save.
constexpr const char* kSaves = R"py(
def save(request):
    with open(os.path.join(request["folder"], "request.json"), "w") as file:
        json.dump({**request, "q": get(request["inputs"]["q"])}, file)
    return {}
DOES["save"] = save
)py";

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype = at::kDouble) {
  return at::randn(sizes, at::kDouble).to(dtype);
}

Request window(at::ScalarType dtype = at::kDouble, std::vector<std::string> gradients = {}, std::int64_t S = 9) {
  return {"attend_window",
          {{"q", random({1, S, 4, 2}, dtype)}, {"k", random({1, S, 2, 2}, dtype)}, {"v", random({1, S, 2, 3}, dtype)}},
          kGeometry,
          {},
          std::move(gradients)};
}

Made made(Request request, Named cotangents = {}) {
  return {std::make_shared<const Request>(std::move(request)), std::move(cotangents), /*answered=*/true};
}

Description description(const std::string& window = "w", LseBase lse = LseBase::e) {
  Description d;
  d.window = window;
  d.lse = lse;
  return d;
}

Json read_json(const fs::path& file) {
  std::ifstream stream(file);
  return Json::parse(stream);
}

class ReproTest : public PythonTest {
 protected:
  [[nodiscard]] Client client(const std::string& changes = "") const {
    return Client({kPython, host(kSaves + changes), adapter, Client::Seconds(60), Client::Seconds(60)});
  }
};

TEST_F(ReproTest, TheLastCallIsRememberedWhateverBecameOfIt) {
  Client one = client("DESCRIPTION['dtypes'] = ['fp64']\nFUNCTIONS['select'].forward = lambda call: 1 / 0\n");
  EXPECT_FALSE(one.last_call());
  const Forward first = one.forward(window(at::kDouble, {"v"}));
  EXPECT_TRUE(one.last_call()->answered);
  EXPECT_TRUE(one.last_call()->cotangents.empty());
  const at::Tensor q = random({1, 3, 2, 2}).requires_grad_();
  (void)error_of([&] {
    (void)one.forward({"select", {{"q", q}, {"k_cmp", random({1, 1, 2, 2})}}, kGeometry, {}, {}});
  });
  EXPECT_EQ(one.last_call()->request->function, "select");
  EXPECT_FALSE(one.last_call()->answered);
  EXPECT_FALSE(named(one.last_call()->request->inputs, "q").requires_grad());  // no graph is kept alive
  const Named cotangents = {{"o", at::ones({1, 9, 4, 3}, at::kDouble)}};
  (void)one.backward(*first.graph, cotangents, false);
  EXPECT_EQ(one.last_call()->request->function, "attend_window");  // of an earlier call
  EXPECT_TRUE(one.last_call()->answered);
  EXPECT_EQ(one.last_call()->cotangents.size(), 1U);
  one.forget();
  EXPECT_FALSE(one.last_call());
}

TEST_F(ReproTest, AnInputThatWasWrittenToIsNotTheCallsAnyMore) {
  Client one = client();
  Request request = window();
  (void)one.forward(request);
  EXPECT_TRUE(one.last_call()->as_it_was());
  request.inputs[0].second.add_(1);
  EXPECT_FALSE(one.last_call()->as_it_was());
  EXPECT_THROW((void)write_repro(one, folder, "a/b"), std::runtime_error);
  const c10::InferenceMode untracked;
  EXPECT_NO_THROW((void)one.forward(window()));
  EXPECT_TRUE(one.last_call()->as_it_was());
}

TEST_F(ReproTest, TheProcessGetsAllThatTheCallNeeds) {
  Client one = client();
  const Request request = window(at::kDouble, {"q", "v"});
  const Forward forward = one.forward(request);
  (void)one.backward(*forward.graph, {{"o", at::ones({1, 9, 4, 3}, at::kDouble)}}, false);
  setenv("NSA_ADAPTER_SOURCE", "/some where", 1);
  const Json told = write_repro(one, folder, "parity/op[op=x]");
  unsetenv("NSA_ADAPTER_SOURCE");
  const fs::path place = fs::path("artifacts") / harness::case_slug("parity/op[op=x]");
  EXPECT_EQ(told["script"], (place / "repro.py").string());
  EXPECT_THAT(told["command"].get<std::string>(), AllOf(HasSubstr("NSA_ADAPTER_SOURCE='/some where' /"),
                                                        HasSubstr((folder / place / "repro.py").string())));
  EXPECT_EQ(told["call"],
            "attend_window(q [1, 9, 4, 2] fp64, k [1, 9, 2, 2] fp64, v [1, 9, 2, 3] fp64, "
            "l = 4, d = 2, l_sel = 4, n_sel = 3, w = 5) and its gradients");
  const Json saved = read_json(folder / place / "request.json");
  EXPECT_EQ(saved["op"], "attend_window");
  EXPECT_EQ(saved["geometry"]["w"], 5);
  EXPECT_EQ(saved["gradients"], (Json{"q", "v"}));
  EXPECT_EQ(saved["wrote"], false);
  EXPECT_THAT(saved["title"].get<std::string>(), HasSubstr("parity/op[op=x]"));
  EXPECT_EQ(saved["inputs"].size(), 3U);
  EXPECT_EQ(saved["cotangents"]["o"]["shape"], (Json{1, 9, 4, 3}));
  EXPECT_EQ(saved["expected"].size(), 4U);  // o, lse, two gradients
  EXPECT_EQ(saved["expected"]["gradient of v"]["dtype"], "fp64");
  EXPECT_EQ(saved["q"].get<std::vector<double>>().front(), request.inputs[0].second.flatten()[0].item<double>());
}

TEST_F(ReproTest, AnotherProcessWritesItWhereTheFirstIsGone) {
  Client one = client("DOES['forward'] = lambda request: os.kill(os.getpid(), signal.SIGKILL)\n");
  EXPECT_EQ(error_of([&] { (void)one.forward(window()); }).kind, "crashed");
  EXPECT_FALSE(one.last_call()->answered);
  const Json told = write_repro(one, folder, "a/b");
  EXPECT_EQ(one.starts(), 2);
  EXPECT_TRUE(
      read_json((folder / told["script"].get<std::string>()).parent_path() / "request.json")["expected"].empty());

  // One that nobody knows to be gone.
  Client two = client(
      "import threading\nreal = forward\n"
      "DOES['forward'] = lambda request: threading.Timer(0.2, os._exit, [0]).start() or real(request)\n");
  (void)two.forward(window());
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_NO_THROW((void)write_repro(two, folder, "a/c"));
  EXPECT_EQ(two.starts(), 2);
}

TEST_F(ReproTest, WhereItCannotBeWrittenTheReasonIsThrown) {
  Client silent = client("DOES['save'] = lambda request: os._exit(3)\n");
  EXPECT_THROW((void)write_repro(silent, folder, "a/b"), std::runtime_error);  // nothing was called
  (void)silent.forward(window());
  EXPECT_EQ(error_of([&] { (void)write_repro(silent, folder, "a/b"); }).kind, "crashed");
  Client one = client();
  (void)one.forward(window());
  EXPECT_ANY_THROW((void)write_repro(one, folder / "missing", "a/b"));
  const fs::path elsewhere = folder / "elsewhere", run = folder / "run";
  fs::create_directories(elsewhere);
  fs::create_directories(run);
  fs::create_directory_symlink(elsewhere, run / "artifacts");
  EXPECT_THROW((void)write_repro(one, run, "a/b"), std::runtime_error);
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

TEST_F(ReproTest, LargeTensorsAreNotWritten) {
  Client one = client("DOES['forward'] = lambda request: 1 / 0\n");
  Request request = window();
  request.inputs[0].second = at::zeros({1}, at::kFloat).expand({1, 1 << 20, 4, 20});
  EXPECT_EQ(error_of([&] { (void)one.forward(request); }).kind, "exception");
  const Json told = write_repro(one, folder, "a/b");
  EXPECT_EQ(told["not_written"], "its inputs have 320 MiB, more than 256");
  EXPECT_FALSE(fs::exists(folder / "artifacts"));
}

TEST(Expected, IsTheReferenceInTheFormThatIsClaimed) {
  const Request request = window(at::kBFloat16);
  const auto x = [&](const char* name) { return named(request.inputs, name).to(at::kDouble); };
  const auto due = [&](std::int64_t w) {
    nsa::Geometry g = kGeometry;
    g.w = w;
    return nsa::reference::attend_window({x("q"), x("k"), x("v"), g, {}});
  };
  const Named plain = expected_of(made(request), description());
  EXPECT_EQ(named(plain, "o").scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(named(plain, "o"), due(5).o.to(at::kFloat)));
  EXPECT_TRUE(at::equal(named(plain, "lse"), due(5).lse.to(at::kFloat)));
  const Named other = expected_of(made(request), description("w+1", LseBase::two));
  EXPECT_TRUE(at::equal(named(other, "o"), due(6).o.to(at::kFloat)));
  EXPECT_TRUE(at::allclose(named(other, "lse"), (due(6).lse / std::numbers::ln2).to(at::kFloat)));
  EXPECT_FALSE(expected_of(made(request), description("w", LseBase::none)).back().second.defined());
}

TEST(Expected, HasTheGradientsOfTheCall) {
  const at::NoGradGuard outside;
  Request request{"attention",
                  {{"q", random({1, 9, 4, 2})},
                   {"k", random({1, 9, 2, 2})},
                   {"v", random({1, 9, 2, 3})},
                   {"gates", at::rand({1, 9, 2, 3}, at::kDouble)}},
                  kGeometry,
                  {},
                  {"q", "k", "gates"}};
  const Named expected = expected_of(made(request, {{"o", at::ones({1, 9, 4, 3}, at::kDouble)}}), description());
  ASSERT_EQ(expected.size(), 4U);
  for (const char* name : {"q", "k", "gates"}) {
    const at::Tensor gradient = named(expected, std::string("gradient of ") + name);
    EXPECT_EQ(gradient.sizes(), named(request.inputs, name).sizes());
    EXPECT_GT(gradient.abs().max().item<double>(), 0) << name;
  }
}

TEST(Expected, EveryFunctionHasOne) {
  const at::Tensor q = random({1, 9, 4, 2}), k = random({1, 9, 2, 2}), v = random({1, 9, 2, 3}),
                   gates = random({1, 9, 2, 3}), k_cmp = random({1, 3, 2, 2}), v_cmp = random({1, 3, 2, 3}),
                   o = random({1, 9, 4, 3});
  const at::Tensor blocks = at::zeros({1, 9, 2, 3}, at::kInt);
  blocks.narrow(3, 1, 2).fill_(-1);
  const Named whole = {{"q", q},     {"k_cmp", k_cmp}, {"v_cmp", v_cmp}, {"k_sel", k},      {"v_sel", v},
                       {"k_win", k}, {"v_win", v},     {"gates", gates}, {"blocks", blocks}};
  for (const auto& [function, inputs, outputs] : std::vector<std::tuple<std::string, Named, std::size_t>>{
           {"compress", {{"k", k}, {"v", v}}, 2},
           {"attend_compressed", {{"q", q}, {"k_cmp", k_cmp}, {"v_cmp", v_cmp}}, 2},
           {"select", {{"q", q}, {"k_cmp", k_cmp}}, 1},
           {"attend_selected", {{"q", q}, {"k", k}, {"v", v}, {"blocks", blocks}}, 2},
           {"combine", {{"gates", gates}, {"o_cmp", o}, {"o_sel", o}, {"o_win", o}}, 1},
           {"attend", whole, 1}}) {
    const Request request{function, inputs, kGeometry, {}, {}};
    const Named expected = expected_of(made(request), description());
    EXPECT_EQ(expected.size(), outputs) << function;
    EXPECT_NO_THROW(check_forms(function, expected, outputs_of(request)));
  }
}

TEST(Expected, IsLeftOutWhereThereIsNothingToCompareOrItTakesTooLong) {
  Made call = made(window());
  call.answered = false;
  EXPECT_TRUE(expected_of(call, description()).empty());
  EXPECT_TRUE(expected_of(made(window(at::kDouble, {}, 9000)), description()).empty());
}

}  // namespace repro_test
}  // namespace suites::implementation::tests
