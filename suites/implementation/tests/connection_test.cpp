#include "suites/implementation/connection.hpp"

#include <ATen/ATen.h>
#include <signal.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "suites/implementation/tests/support.hpp"

namespace suites::implementation::tests {
namespace connection_test {

using testing::HasSubstr;

constexpr Connection::Seconds kLong{60};

class ConnectionTest : public PythonTest {
 protected:
  [[nodiscard]] Connection connection(const std::string& body) const { return {kPython, program(body), adapter}; }
  // What the first request to a program throws.
  [[nodiscard]] ImplementationError first_error(const std::string& body) const {
    Connection to = connection(body);
    const ImplementationError error = error_of([&] { (void)to.ask("describe", Json::object(), kLong); });
    EXPECT_EQ(to.running(), !error.process_is_gone()) << error.what();
    return error;
  }
};

constexpr const char* kEcho = "while True:\n  one = request()\n  ok(one, came=one)\n";

TEST_F(ConnectionTest, RequestsAreNumbered) {
  Connection to = connection(kEcho);
  EXPECT_EQ(to.ask("memory", {{"more", 1.5}}, kLong)["came"], (Json{{"id", 1}, {"do", "memory"}, {"more", 1.5}}));
  EXPECT_EQ(to.ask("leave", Json::object(), kLong)["came"], (Json{{"id", 2}, {"do", "leave"}}));
}

TEST_F(ConnectionTest, AnErrorOfTheHostIsThrownAndItGoesOn) {
  Connection to = connection(R"py(
one = request()
print("heard")
error(one, "exception", "no such thing", "ValueError", "Traceback\n  a.py")
while True: error(request(), "import", "no torch")
)py");
  const auto first = error_of([&] { (void)to.ask("forward", Json::object(), kLong); });
  EXPECT_EQ(first.kind, "exception");
  EXPECT_EQ(first.message, "ValueError: no such thing");
  EXPECT_EQ(first.traceback, "Traceback\n  a.py");
  EXPECT_EQ(error_of([&] { (void)to.ask("forward", Json::object(), kLong); }).message, "no torch");
  EXPECT_TRUE(to.running());
  EXPECT_EQ(to.last_words(), "heard\n");
}

TEST_F(ConnectionTest, WhatIsNoAnswerIsRefused) {
  const auto complaint = [&](const std::string& answer) {
    const auto error = first_error("request()\nsay(" + answer + ")\nrequest()");
    EXPECT_EQ(error.kind, "protocol") << answer;
    return error.message;
  };
  EXPECT_EQ(complaint(R"("Hello!\n")"), "no JSON object in answer to describe: Hello!");
  EXPECT_EQ(complaint(R"("\n")"), "no JSON object in answer to describe: ");
  EXPECT_EQ(complaint(R"(b"\xff\x00\n")"), std::string("no JSON object in answer to describe: \xEF\xBF\xBD\0", 42));
  EXPECT_EQ(complaint(R"("[" * 100000 + "\n")").substr(0, 40), "no JSON object in answer to describe: [[");
  EXPECT_EQ(complaint(R"('{"id": 7, "ok": {}}\n')"),
            R"(the answer to describe has another id than 1: {"id": 7, "ok": {}})");
  EXPECT_THAT(complaint(R"('{"id": null, "error": {"kind": "request"}}\n')"), HasSubstr("another id"));
  EXPECT_THAT(complaint(R"('{"ok": {}}\n')"), HasSubstr("another id"));
  EXPECT_THAT(complaint(R"('{"id": 1}\n')"), HasSubstr("neither ok nor error"));
}

TEST_F(ConnectionTest, AnErrorWithoutAKindIsRefused) {
  const auto error = first_error("request()\nsay('{\"id\": 1, \"error\": {\"message\": \"x\"}}\\n')\nrequest()");
  EXPECT_EQ(error.message, "an error of the host: kind is not there; allowed: a value");
}

// Twice what came, behind it.
constexpr const char* kDouble = R"py(
while True:
    one = request()
    out = {name: put([2 * x for x in get(place)], place["dtype"], place["shape"]) for name, place in one["in"].items()}
    ok(one, out={**out, "none": None}, arena=arena_size())
)py";

TEST_F(ConnectionTest, TensorsCrossBothWays) {
  Connection to = connection(kDouble);
  for (const std::int64_t count : {3, 0, 1 << 18, 5}) {  // the third makes the arena larger on both sides
    const Named in = {{"a", at::randn({count, 2}, at::kDouble)}, {"b", at::randn({2, count})}};
    Json body = Json::object();
    body["in"] = to.put(in, body);
    const Json answer = to.ask("double", body, kLong);
    const Named out = to.take(Fields(answer, "answer"), "out");
    ASSERT_EQ(out.size(), 3U);
    EXPECT_TRUE(at::equal(named(out, "a"), 2 * in[0].second));
    EXPECT_TRUE(at::equal(named(out, "b"), 2 * in[1].second));
    EXPECT_FALSE(out[2].second.defined());
  }
}

TEST_F(ConnectionTest, PlacesOutsideTheArenaAreRefused) {
  Connection to = connection(R"py(
far = {"dtype": "fp64", "shape": [8], "at": 1 << 40}
ok(request(), out={"o": far}, arena=arena_size())
ok(request(), out={"o": {**far, "at": 0}}, arena=1 << 60)
ok(request(), out={"o": {**far, "dtype": "fp8"}}, arena=arena_size())
request()
)py");
  const auto complaint = [&] {
    const Json answer = to.ask("forward", Json::object(), kLong);
    const auto error = error_of([&] { (void)to.take(Fields(answer, "answer"), "out"); });
    EXPECT_EQ(error.kind, "protocol");
    return error.message;
  };
  EXPECT_THAT(complaint(), HasSubstr("a tensor fp64 [8] at byte 1099511627776 of the arena: it would end outside"));
  EXPECT_THAT(complaint(), HasSubstr("the arena is said to have"));
  EXPECT_EQ(complaint(), "o: dtype is \"fp8\"; allowed: fp64, fp32, bf16, fp16 or int32");
}

// A program that opens what it is shown, and whose get_there() and put_there() are those of that memory. OPENS says
// what it answers then; what it is asked for is in `asked`.
constexpr const char* kOpens = R"py(
asked, there, free = [], None, 0

def get_there(place):
    count = math.prod(place["shape"])
    assert place["in"] == "cuda" and place["at"] % 256 == 0, place
    return list(struct.unpack_from(f"{count}{CODES[place['dtype']]}", there, place["at"]))

def put_there(values, dtype, shape):
    global free
    data = struct.pack(f"{len(values)}{CODES[dtype]}", *values)
    if there is None or free + len(data) > len(there):
        return put(values, dtype, shape)
    at = free
    there[at:at + len(data)] = data
    free = (at + len(data) + 255) // 256 * 256
    return {"dtype": dtype, "shape": list(shape), "at": at, "in": "cuda"}

def get_any(place):
    return get_there(place) if "in" in place else get(place)

def share(one):
    global there, free
    with open(bytes.fromhex(one["memory"]["handle"]).rstrip(b"\0"), "r+b") as file:
        there = mmap.mmap(file.fileno(), one["memory"]["size"])
    free = one["device_room"]
    place = one["probe"]
    probe = [x + 1 for x in get_there(place)]
    return {"shared": True, "outputs": {"probe": put_there(probe, "int32", place["shape"])}, "arena": arena_size()}

OPENS = share

def serve():
    global free
    while True:
        one = request()
        asked.append(one["do"])
        if one["do"] == "share":
            try:
                answer = OPENS(one)
            except Exception as raised:
                error(one, "request", str(raised))
                continue
            ok(one, **answer)
            continue
        free = one.get("device_room", 1 << 60)
        out = {name: put_there([2 * x for x in get_any(p)], p["dtype"], p["shape"]) for name, p in one["in"].items()}
        ok(one, out={**out, "none": None}, arena=arena_size(), asked=asked, room=one.get("device_room"),
           outside=["in" not in place for place in out.values()])
)py";

class SharedMemoryTest : public ConnectionTest {
 protected:
  [[nodiscard]] Connection sharing(const std::string& changes = "") const {
    return {kPython, program(std::string(kOpens) + changes + "\nserve()\n"), adapter, files.memory()};
  }
  // Whether `in` comes back doubled; the answer is in `answer`.
  bool doubles(Connection& to, const Named& in, const std::vector<Form>& answers) {
    Json body = Json::object();
    body["in"] = to.share(in, body, answers);
    answer = to.ask("double", body, kLong);
    const Named out = to.take(Fields(answer, "answer"), "out");
    bool all = out.size() == in.size() + 1 && !out.back().second.defined();
    for (const auto& [name, tensor] : in) all = all && at::equal(named(out, name), 2 * tensor);
    return all;
  }
  bool doubles(Connection& to, std::int64_t count) {
    const Named in = {{"a", at::randn({count, 2}, at::kDouble)}, {"b", at::randn({2, count})}};
    return doubles(to, in, {form_of("a", in[0].second), form_of("b", in[1].second)});
  }

  FileMemory files{folder};
  Json answer;
};

TEST_F(SharedMemoryTest, TensorsCrossInMemoryThatGrows) {
  Connection to = sharing();
  EXPECT_EQ(to.transport(), "shared memory");
  EXPECT_EQ(*files.made, 0);
  int opened = 0;
  for (const std::int64_t count : {3, 0, 1 << 16, 1 << 18, 5}) {  // the third fits no more, the fourth neither
    opened += count == 3 || count >= 1 << 16 ? 1 : 0;
    EXPECT_TRUE(doubles(to, count)) << count;
    EXPECT_EQ(answer["outside"], (Json{false, false})) << count;
    EXPECT_EQ(std::count(answer["asked"].begin(), answer["asked"].end(), "share"), opened) << count;
    EXPECT_EQ(*files.made, opened);
    EXPECT_EQ(*files.alive, 1);  // what was there before is freed when the other side has let go of it
  }
  EXPECT_EQ(to.transport(), "CUDA IPC");
  EXPECT_GT(*files.waits, 0);
}

TEST_F(SharedMemoryTest, WhatFindsNoRoomComesBackInTheHostsMemory) {
  Connection to = sharing();
  const Named in = {{"a", at::randn({DeviceArena::kGrain / 8}, at::kDouble)}};  // all of the first memory
  EXPECT_TRUE(doubles(to, in, {}));
  EXPECT_EQ(answer["outside"], (Json{true}));
  EXPECT_TRUE(doubles(to, in, {form_of("a", in[0].second)}));
  EXPECT_EQ(answer["outside"], (Json{false}));
}

TEST_F(SharedMemoryTest, RoomIsForTheWidestThatMayComeBack) {
  Connection to = sharing();
  const Named in = {{"a", at::ones({4})}};
  EXPECT_TRUE(doubles(to, in, {{"lse", {DeviceArena::kGrain / 8}, {at::kFloat, at::kDouble}, true}}));
  EXPECT_EQ(answer["room"], 256);
  EXPECT_EQ(std::filesystem::file_size(folder / "memory1"), 2 * DeviceArena::kGrain);
}

TEST_F(SharedMemoryTest, WhatCannotBeSharedIsCopied) {
  const auto copied = [&](const std::string& changes) {
    Connection to = sharing(changes);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(doubles(to, 7)) << changes;
      EXPECT_EQ(answer["outside"], (Json{true, true}));
      EXPECT_EQ(answer["room"], nullptr);
    }
    EXPECT_EQ(std::count(answer["asked"].begin(), answer["asked"].end(), "share"), 1);
    EXPECT_EQ(*files.alive, 0);
    return to.transport();
  };
  EXPECT_EQ(copied("OPENS = lambda one: {'shared': False, 'why': 'no libcuda'}\n"), "host copies (no libcuda)");
  EXPECT_EQ(copied("OPENS = lambda one: int('no such request')\n"),
            "host copies (invalid literal for int() with base 10: 'no such request')");
  EXPECT_EQ(copied(R"py(
def OPENS(one):
    answer = share(one)
    there[answer["outputs"]["probe"]["at"]] ^= 1
    return answer
)py"),
            "host copies (what one process writes there the other does not read)");
}

TEST_F(SharedMemoryTest, WhatIsNoAnswerToSharingIsRefused) {
  Connection to = sharing("OPENS = lambda one: {}\n");
  EXPECT_EQ(error_of([&] { (void)doubles(to, 7); }).message, "answer to share: shared is not there; allowed: a value");
}

TEST_F(SharedMemoryTest, MemoryThatIsNotToBeHadIsDoneWithout) {
  DeviceMemory none = files.memory();
  none.allocate = [](at::Device, std::int64_t) -> DeviceMemory::Block { throw std::runtime_error("out of memory"); };
  Connection to(kPython, program(std::string(kOpens) + "\nserve()\n"), adapter, none);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(doubles(to, 7));
  EXPECT_EQ(answer["asked"], (Json{"double", "double"}));
  EXPECT_EQ(to.transport(), "host copies (out of memory)");
}

// The memory that it has open must stay until it has ended, and goes then.
TEST_F(SharedMemoryTest, WhatALaterMemoryLacksIsCopiedFromThen) {
  DeviceMemory once = files.memory();
  once.allocate = [allocate = once.allocate, first = std::make_shared<bool>(true)](at::Device device,
                                                                                   std::int64_t bytes) {
    if (!std::exchange(*first, false)) throw std::runtime_error("out of memory");
    return allocate(device, bytes);
  };
  {
    Connection to(kPython, program(std::string(kOpens) + "\nserve()\n"), adapter, once);
    EXPECT_TRUE(doubles(to, 3));
    EXPECT_EQ(to.transport(), "CUDA IPC");
    EXPECT_TRUE(doubles(to, 1 << 18));
    EXPECT_EQ(answer["outside"], (Json{true, true}));
    EXPECT_EQ(to.transport(), "host copies (out of memory)");
    EXPECT_EQ(*files.alive, 1);
  }
  EXPECT_EQ(*files.alive, 0);
}

TEST_F(SharedMemoryTest, ADeadProcessHarmsNoMemory) {
  Connection to = sharing();
  EXPECT_TRUE(doubles(to, 3));
  kill(to.pid(), SIGKILL);
  EXPECT_EQ(error_of([&] { (void)doubles(to, 3); }).kind, "crashed");
  EXPECT_EQ(error_of([&] { (void)doubles(to, 1 << 18); }).kind, "crashed");  // while it should have opened more
  to.end();
  EXPECT_EQ(*files.alive, 0);
}

TEST_F(SharedMemoryTest, PlacesOutsideAreRefused) {
  constexpr const char* kAnswers = R"py(
far = {"dtype": "fp64", "shape": [8], "at": 1 << 21, "in": "cuda"}
one = request()
if one["do"] == "share":
    ok(one, **share(one))
    one = request()
for part in ({}, {"at": 64}, {"shape": [1 << 61]}, {"in": "tpu"}):
    ok(one, out={"o": {**far, **part}}, arena=arena_size())
    one = request()
)py";
  Connection to(kPython, program(std::string(kOpens) + kAnswers), adapter, files.memory());
  Connection without = connection(std::string(kOpens) + kAnswers);
  Connection unopened(kPython, program(std::string(kOpens) + kAnswers), adapter, files.memory());
  const auto complaint = [&](Connection& asked, bool shares = true) {
    Json body = Json::object();
    const Named in = {{"x", at::ones({4})}};
    body["in"] = shares ? asked.share(in, body, {}) : asked.put(in, body);
    answer = asked.ask("double", body, kLong);
    const auto error = error_of([&] { (void)asked.take(Fields(answer, "answer"), "out"); });
    EXPECT_EQ(error.kind, "protocol");
    return error.message;
  };
  EXPECT_EQ(complaint(to),
            "a tensor fp64 [8] at byte 2097152 of the GPU's arena: it would end outside; the arena has 2097152 bytes");
  EXPECT_THAT(complaint(to), HasSubstr("allowed: a multiple of 256"));
  EXPECT_THAT(complaint(to), HasSubstr("no such size"));
  EXPECT_EQ(complaint(to), "o: in is \"tpu\"; allowed: cuda");
  const std::string none = "a tensor lies in memory of a GPU, and none is shared";
  EXPECT_EQ(complaint(without), none);
  EXPECT_EQ(complaint(unopened, /*shares=*/false), none);
}

}  // namespace connection_test
}  // namespace suites::implementation::tests
