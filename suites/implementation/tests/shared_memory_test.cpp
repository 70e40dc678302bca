// The client and the host that is shipped, with adapters that are: through memory that both have open. Over files, and
// on a GPU where there is one.
#include <ATen/ATen.h>
#include <signal.h>

#include <cmath>
#include <cstdlib>
#include <utility>

#include "suites/implementation/client.hpp"
#include "suites/implementation/tests/support.hpp"
#include "suites/oracle/compare.hpp"

namespace suites::implementation::tests {
namespace shared_memory_test {

const std::filesystem::path kAdapters = NSA_SOURCE_FOLDER "/adapters";
constexpr std::int64_t kMiB = 1 << 20;
const nsa::Geometry kGeometry = {.l = 4, .d = 2, .l_sel = 4, .n_sel = 3, .w = 5};

class SharedTest : public PythonTest, public testing::WithParamInterface<at::DeviceType> {
 protected:
  void SetUp() override {
    if (!NSA_TEST_PYTHON_HAS_TORCH) GTEST_SKIP() << NSA_TEST_PYTHON << " cannot import torch";
    if (!is_file() && !at::hasCUDA()) GTEST_SKIP() << "no GPU";
    at::manual_seed(7);
  }

  [[nodiscard]] static bool is_file() { return GetParam() == at::kCPU; }
  [[nodiscard]] static at::Device device() { return is_file() ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0); }
  [[nodiscard]] static std::filesystem::path host() {
    return is_file() ? kAdapters / "tests/file_host.py" : kAdapters / "host/host.py";
  }
  [[nodiscard]] DeviceMemory memory() const { return is_file() ? files.memory() : cuda_memory(); }
  [[nodiscard]] Client::Options options(const char* file) const {
    return {NSA_TEST_PYTHON, host(), kAdapters / file, Client::Seconds(120), Client::Seconds(120), memory()};
  }
  [[nodiscard]] static at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return at::randn(sizes).to(dtype).to(device());
  }
  [[nodiscard]] static Request window(std::vector<std::string> gradients = {}) {
    return {"attend_window",
            {{"q", random({1, 37, 4, 8})}, {"k", random({1, 37, 2, 8})}, {"v", random({1, 37, 2, 8})}},
            kGeometry,
            {},
            std::move(gradients)};
  }
  // Of `combine`; tests/odd.py gives o_win back as it came.
  [[nodiscard]] static Request branches(std::int64_t tokens, at::ScalarType dtype = at::kFloat) {
    const auto branch = [&] { return random({1, tokens, 2, 32}, dtype); };
    return {
        "combine",
        {{"gates", random({1, tokens, 1, 3}, dtype)}, {"o_cmp", branch()}, {"o_sel", branch()}, {"o_win", branch()}},
        kGeometry,
        {},
        {}};
  }

  FileMemory files{folder};
};
INSTANTIATE_TEST_SUITE_P(Memory, SharedTest, testing::Values(at::kCPU, at::kCUDA),
                         [](const auto& tested) { return tested.param == at::kCPU ? "file" : "gpu"; });

TEST_P(SharedTest, TensorsOfEveryTypeComeBackAsTheyWent) {
  Client client(options("tests/odd.py"));
  (void)client.describe();
  EXPECT_EQ(client.transport(), "shared memory");
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    Request request = branches(13, dtype);
    request.inputs.back().second.view(-1).slice(0, 0, 3).copy_(at::tensor({std::nan("7"), -INFINITY, -0.0}));
    const at::Tensor o = named(client.forward(request).outputs, "o");
    EXPECT_TRUE(oracle::same_bits(o, named(request.inputs, "o_win"))) << c10::toString(dtype);
    EXPECT_EQ(o.device(), device());
  }
  Request integers = window();
  integers.function = "attend_selected";
  for (auto& [name, tensor] : integers.inputs) tensor = tensor.slice(1, 0, 2).slice(2, 0, 1).to(at::kDouble);
  const at::Tensor blocks = at::tensor({-1, 0, 7, 1 << 30, 3, -5, 2, 1}, at::kInt).view({1, 2, 1, 4}).to(device());
  for (auto& [name, tensor] : integers.inputs) tensor = tensor.slice(3, 0, 4);
  integers.inputs.emplace_back("blocks", blocks);
  EXPECT_TRUE(at::equal(named(client.forward(integers).outputs, "o").to(at::kInt), blocks));
  EXPECT_EQ(client.transport(), "CUDA IPC");
}

TEST_P(SharedTest, EmptyTensorsCross) {
  Client client(options("tests/odd.py"));
  const Request request = branches(0);
  EXPECT_TRUE(oracle::same_bits(named(client.forward(request).outputs, "o"), named(request.inputs, "o_win")));
  EXPECT_EQ(client.transport(), "CUDA IPC");
}

TEST_P(SharedTest, BitsAreThoseOfHostCopies) {
  Client shared(options("pytorch.py"));
  auto with = options("pytorch.py");
  with.device_memory.reset();
  Client copied(with);
  const Request request = window({"q", "k", "v"});
  const Named cotangent = {{"o", random({1, 37, 4, 8})}};
  const Forward one = shared.forward(request), other = copied.forward(request);
  for (const char* name : {"o", "lse"})
    EXPECT_TRUE(oracle::same_bits(named(one.outputs, name), named(other.outputs, name)));
  EXPECT_EQ(named(one.outputs, "o").device(), device());
  EXPECT_TRUE(named(other.outputs, "o").is_cpu());
  for (const bool keep : {true, false}) {
    const Named some = shared.backward(*one.graph, cotangent, keep).gradients;
    const Named others = copied.backward(*other.graph, cotangent, keep).gradients;
    for (const char* name : {"q", "k", "v"}) {
      EXPECT_TRUE(oracle::same_bits(named(some, name), named(others, name))) << name;
      EXPECT_EQ(named(some, name).device(), device());
    }
  }
  EXPECT_EQ(shared.transport(), "CUDA IPC");
  EXPECT_EQ(copied.transport(), is_file() ? "shared memory" : "host copies (nothing else was asked for)");
}

TEST_P(SharedTest, MemoryGrowsWhileAGraphIsKept) {
  Client client(options("pytorch.py"));
  const Request small = window({"q", "k", "v"});
  const Named cotangent = {{"o", random({1, 37, 4, 8})}};
  const Forward first = client.forward(small);
  const Backward before = client.backward(*first.graph, cotangent, /*keep=*/true);
  for (const std::int64_t bytes : {kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB}) {
    const Request large = branches(bytes / (3 * 2 * 32 * 4));  // three branches
    const at::Tensor o = named(client.forward(large).outputs, "o");
    at::Tensor due = at::zeros_like(o);
    for (const auto& [i, name] : {std::pair{0, "o_cmp"}, {1, "o_sel"}, {2, "o_win"}})
      due += named(large.inputs, "gates").select(-1, i).unsqueeze(-1) * named(large.inputs, name);
    EXPECT_TRUE(at::allclose(o, due, 1e-4, 1e-5)) << bytes;
  }
  const Backward after = client.backward(*first.graph, cotangent, /*keep=*/false);
  for (const char* name : {"q", "k", "v"})
    EXPECT_TRUE(oracle::same_bits(named(before.gradients, name), named(after.gradients, name)));
  EXPECT_EQ(client.transport(), "CUDA IPC");
  EXPECT_EQ(client.starts(), 1);
}

TEST_P(SharedTest, OutputsThatDoNotFitComeThroughTheHost) {
  Connection to(NSA_TEST_PYTHON, host(), kAdapters / "tests/odd.py", memory());
  (void)to.ask("describe", Json::object(), Connection::Seconds(120));
  const Request request = branches(3 * kMiB / 256);  // memory of their size then, with less than an output's room
  const auto o_of = [&](const std::vector<Form>& room, bool fits) {
    Json body = to_json(request);
    body["inputs"] = to.share(request.inputs, body, room);
    const Json answer = to.ask("forward", body, Connection::Seconds(120));
    EXPECT_EQ(answer["outputs"]["o"].contains("in"), fits);
    return named(to.take(Fields(answer, "answer"), "outputs"), "o");
  };
  const at::Tensor outside = o_of({}, false), inside = o_of(outputs_of(request), true);
  EXPECT_TRUE(outside.is_cpu());
  EXPECT_EQ(inside.device(), device());
  EXPECT_TRUE(oracle::same_bits(outside, named(request.inputs, "o_win")));
  EXPECT_TRUE(oracle::same_bits(inside, outside));
  EXPECT_EQ(to.transport(), "CUDA IPC");
}

TEST_P(SharedTest, ADeadProcessHarmsNoMemory) {
  {
    Connection to(NSA_TEST_PYTHON, host(), kAdapters / "tests/odd.py", memory());
    const Request request = branches(64);
    Json body = to_json(request);
    body["inputs"] = to.share(request.inputs, body, outputs_of(request));
    kill(to.pid(), SIGKILL);
    EXPECT_EQ(error_of([&] { (void)to.ask("forward", body, Connection::Seconds(60)); }).kind, "crashed");
  }
  Client client(options("tests/lying/exits.py"));
  for (std::int64_t starts = 1; starts <= 2; ++starts) {
    const Request request = branches(64);
    EXPECT_EQ(named(client.forward(request).outputs, "o").device(), device());
    EXPECT_EQ(client.starts(), starts);
    EXPECT_EQ(client.transport(), "CUDA IPC");
    EXPECT_EQ(error_of([&] { (void)client.forward(window()); }).kind, "crashed");
  }
  EXPECT_TRUE(at::equal(random({64}).abs().ge(0).cpu(), at::ones({64}, at::kBool)));  // the GPU goes on
}

TEST_P(SharedTest, AnInputThatIsWrittenToIsSeenAndOursStays) {
  Client client(options("tests/lying/writes_into_q.py"));
  const Request request = window();
  const at::Tensor q = named(request.inputs, "q").clone();
  EXPECT_EQ(client.forward(request).changed_inputs, (std::vector<std::string>{"q"}));
  EXPECT_TRUE(oracle::same_bits(named(request.inputs, "q"), q));
  EXPECT_EQ(client.transport(), "CUDA IPC");
}

TEST_P(SharedTest, AProcessOnAnotherGpuGetsCopies) {
  auto with = options("tests/odd.py");
  with.device_memory->allocate = [allocate = memory().allocate](at::Device where, std::int64_t bytes) {
    DeviceMemory::Block block = allocate(where, bytes);
    block.opened_by["gpu"] = "another";
    return block;
  };
  Client client(with);
  const Request request = branches(64);
  const at::Tensor o = named(client.forward(request).outputs, "o");
  EXPECT_TRUE(oracle::same_bits(o, named(request.inputs, "o_win")));
  EXPECT_TRUE(o.is_cpu());
  EXPECT_THAT(client.transport(),
              testing::StartsWith("host copies (it is memory of the GPU another: here calls go to "));
  EXPECT_EQ(client.starts(), 1);
}

}  // namespace shared_memory_test
}  // namespace suites::implementation::tests
