#include "suites/implementation/tests/support.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "harness/process.hpp"

namespace suites::implementation::tests {

namespace fs = std::filesystem;

const char* const kProtocol = R"py(
import array, json, math, mmap, os, signal, struct, sys, time

R, W, M = (int(number) for number in os.environ["NSA_ADAPTER_FDS"].split(","))
for descriptor in (R, W, M):
    os.set_inheritable(descriptor, False)
requests = os.fdopen(R, "r")
room = 0

def request():
    global room
    line = requests.readline()
    if not line:
        sys.exit(0)
    fields = json.loads(line)
    room = fields.get("room", room)
    return fields

def say(text):
    data = text.encode() if isinstance(text, str) else text
    while data:
        data = data[os.write(W, data):]

def ok(request, **fields):
    say(json.dumps({"id": request["id"], "ok": fields}) + "\n")

def error(request, kind, message, type="", traceback=""):
    told = {"kind": kind, "type": type, "message": message, "traceback": traceback}
    say(json.dumps({"id": request["id"], "error": told}) + "\n")

CODES = {"fp64": "d", "fp32": "f", "int32": "i", "bf16": "H", "fp16": "e"}

def arena_size():
    return os.fstat(M).st_size

def get(place):
    count = math.prod(place["shape"])
    if count == 0:
        return []
    with mmap.mmap(M, arena_size()) as memory:
        return list(struct.unpack_from(f"{count}{CODES[place['dtype']]}", memory, place["at"]))

def put(values, dtype, shape):
    global room
    at = (room + 63) // 64 * 64
    data = struct.pack(f"{len(values)}{CODES[dtype]}", *values)
    room = at + len(data)
    if room > arena_size():
        os.ftruncate(M, room)
    with mmap.mmap(M, arena_size()) as memory:
        memory[at:at + len(data)] = data
    return {"dtype": dtype, "shape": list(shape), "at": at}
)py";

const char* const kHost = R"py(
DESCRIPTION = {
    "name": "fake", "version": "1",
    "computes": ["compress", "attend_compressed", "select", "attend_selected", "attend_window", "combine"],
    "device": ["cpu"], "dtypes": ["fp64"], "layouts": ["batched", "packed"], "gradients": True,
    "window": "w", "forced": {"first": 1, "last": 2}, "ties": "lower", "importance": "paper",
    "shared_kv": False, "lse": "e",
}
HOST = {"python": "3", "torch": "none", "executable": sys.executable, "cuda": False, "file": sys.argv[1], "mistakes": []}

class Tensor:
    def __init__(self, shape, values=None, dtype="fp64"):
        self.shape, self.dtype = list(shape), dtype
        self.values = [0.0] * math.prod(shape) if values is None else values
    def index(self, *place):
        at = 0
        for size, one in zip(self.shape, place):
            at = at * size + one
        return at
    def __getitem__(self, place):
        return self.values[self.index(*place)]
    def add(self, value, *place):
        self.values[self.index(*place)] += value
    def places(self):
        def walk(prefix, rest):
            if not rest:
                yield tuple(prefix)
                return
            for i in range(rest[0]):
                yield from walk(prefix + [i], rest[1:])
        return walk([], self.shape)

class Call:
    def __init__(self, request):
        self.x = {name: Tensor(p["shape"], get(p), p["dtype"]) for name, p in request["inputs"].items()}
        self.geometry, self.cu_seqlens, self.op = request["geometry"], request["cu_seqlens"], request["op"]
        self.wanted = request["gradients"]
    def like_q(self, values):
        return Tensor(self.x["q"].shape[:3] + [self.x[values].shape[3]])
    def of_head(self, values, b, s, h, i):
        group = h // (self.x["q"].shape[2] // self.x[values].shape[2])
        return (b, s, group, i)

# A function: forward(call) -> outputs; backward(call, cotangents) -> gradients.
class Scaled:
    def __init__(self, *terms):
        self.terms = terms  # (factor, name of the values)
    def forward(self, call):
        o = call.like_q(self.terms[0][1])
        for factor, name in self.terms:
            rows = call.x[name].shape[1]
            for b, s, h, i in o.places():
                if s < rows:
                    o.add(factor * call.x[name][call.of_head(name, b, s, h, i)], b, s, h, i)
        return {"o": o, "lse": self.lse(call) if DESCRIPTION["lse"] and call.op.startswith("attend_") else None}
    def lse(self, call):
        q = call.x["q"]
        lse = Tensor([q.shape[0], q.shape[2], q.shape[1]], dtype="fp32")
        scale = 1 / math.log(2) if DESCRIPTION["lse"] == "2" else 1
        for b, s, h, i in q.places():
            lse.add(scale * q[b, s, h, i], b, h, s)
        return lse
    def backward(self, call, d):
        gradients = {}
        for factor, name in self.terms:
            gradients[name] = Tensor(call.x[name].shape)
            for b, s, h, i in d["o"].places():
                if s < call.x[name].shape[1]:
                    gradients[name].add(factor * d["o"][b, s, h, i], *call.of_head(name, b, s, h, i))
        return gradients

class Combine:
    def forward(self, call):
        x = call.x
        o = Tensor(x["o_cmp"].shape)
        for b, s, h, i in o.places():
            g = h // (o.shape[2] // x["gates"].shape[2])
            for branch, name in enumerate(("o_cmp", "o_sel", "o_win")):
                o.add(x["gates"][b, s, g, branch] * x[name][b, s, h, i], b, s, h, i)
        return {"o": o, "lse": None}
    def backward(self, call, d):
        x = call.x
        gradients = {name: Tensor(tensor.shape) for name, tensor in x.items()}
        for b, s, h, i in d["o"].places():
            g = h // (d["o"].shape[2] // x["gates"].shape[2])
            for branch, name in enumerate(("o_cmp", "o_sel", "o_win")):
                gradients["gates"].add(d["o"][b, s, h, i] * x[name][b, s, h, i], b, s, g, branch)
                gradients[name].add(d["o"][b, s, h, i] * x["gates"][b, s, g, branch], b, s, h, i)
        return gradients

class Compress:
    def spans(self, call):
        geometry, bounds = call.geometry, call.cu_seqlens or [0, call.x["k"].shape[1]]
        return [first for begin, end in zip(bounds, bounds[1:])
                for first in range(begin, end - geometry["l"] + 1, geometry["d"])]
    def forward(self, call):
        outputs, spans, l = {}, self.spans(call), call.geometry["l"]
        for name in ("k", "v"):
            B, S, G, D = call.x[name].shape
            outputs[name + "_cmp"] = out = Tensor([B, len(spans), G, D])
            for b, n, g, i in out.places():
                for t in range(spans[n], spans[n] + l):
                    out.add(call.x[name][b, t, g, i] / l, b, n, g, i)
        return outputs
    def backward(self, call, d):
        gradients, spans, l = {}, self.spans(call), call.geometry["l"]
        for name in ("k", "v"):
            gradients[name] = Tensor(call.x[name].shape)
            if name + "_cmp" in d:
                for b, n, g, i in d[name + "_cmp"].places():
                    for t in range(spans[n], spans[n] + l):
                        gradients[name].add(d[name + "_cmp"][b, n, g, i] / l, b, t, g, i)
        return gradients

class Select:
    def forward(self, call):
        q, n = call.x["q"].shape, call.geometry["n_sel"]
        rows = q[0] * q[1] * call.x["k_cmp"].shape[2]
        return {"blocks": Tensor([q[0], q[1], call.x["k_cmp"].shape[2], n], ([0] + [-1] * (n - 1)) * rows, "int32")}

class Attention(Scaled):
    def forward(self, call):
        o = super().forward(call)
        gate = call.x["gates"][0, 0, 0, 0]
        o["o"].values = [gate * value for value in o["o"].values]
        return o

FUNCTIONS = {
    "compress": Compress(), "select": Select(), "combine": Combine(), "attend_compressed": Scaled((3, "v_cmp")),
    "attend_selected": Scaled((3, "v")), "attend_window": Scaled((3, "v")),
    "attend": Scaled((2, "v_sel"), (1, "v_win")), "attention": Attention((1, "v")),
}
graphs, log = {}, []

def laid(tensors):
    return {name: None if t is None else put(t.values, t.dtype, t.shape) for name, t in tensors.items()}

def forward(request):
    call = Call(request)
    outputs = FUNCTIONS[request["op"]].forward(call)
    name = None
    if call.wanted:
        name = len(log) + 1
        graphs[name] = call
    return {"outputs": laid(outputs), "call": name, "requires_grad": bool(call.wanted) and DESCRIPTION["gradients"],
            "changed_inputs": [], "seconds": 0.25, "arena": arena_size()}

def backward(request):
    call = graphs[request["call"]]
    d = {name: Tensor(p["shape"], get(p), p["dtype"]) for name, p in request["cotangents"].items()}
    found = FUNCTIONS[call.op].backward(call, d)
    if not request["keep"]:
        del graphs[request["call"]]
    return {"gradients": laid({name: found.get(name) for name in call.wanted}), "changed_inputs": [], "seconds": 0.5,
            "arena": arena_size()}

def release(request):
    del graphs[request["call"]]
    return {}

DOES = {
    "describe": lambda request: {"description": DESCRIPTION, **HOST},
    "forward": forward, "backward": backward, "release": release,
    "memory": lambda request: {"resident": 4096, "cuda_allocated": None, "graphs": len(graphs)},
    "seed": lambda request: {},
}

def serve():
    while True:
        one = request()
        log.append(one["do"])
        try:
            answer = DOES[one["do"]](one)
        except KeyError as missing:
            error(one, "request", f"no {missing}")
            continue
        except Exception as raised:
            error(one, "exception", str(raised), type(raised).__name__, "Traceback ...")
            continue
        ok(one, **answer)
)py";

PythonTest::PythonTest() {
  std::string pattern = (fs::temp_directory_path() / "implementation.XXXXXX").string();
  folder = mkdtemp(pattern.data());
  adapter = folder / "adapter.py";
}

PythonTest::~PythonTest() { fs::remove_all(folder); }

void PythonTest::SetUp() {
  static const bool there = harness::output_of({kPython, "-c", "print('here')"}, 60) == "here\n";
  if (!there) GTEST_SKIP() << "no " << kPython << " here";
}

fs::path PythonTest::program(const std::string& body) const {
  static int count = 0;
  const fs::path file = folder / fmt::format("program{}.py", ++count);
  std::ofstream(file) << kProtocol << body;
  return file;
}

fs::path PythonTest::host(const std::string& changes) const {
  return program(std::string(kHost) + changes + "\nserve()\n");
}

DeviceMemory FileMemory::memory() const {
  const auto allocate = [*this](at::Device, std::int64_t bytes) -> DeviceMemory::Block {
    const fs::path file = folder / fmt::format("memory{}", ++*made);
    const harness::Fd fd(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    const auto size = static_cast<std::size_t>(bytes);
    if (ftruncate(fd.get(), bytes) != 0) throw std::runtime_error("no file for memory");
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no mapping of a file");
    ++*alive;
    const auto unmap = [size, alive = alive](char* all) {
      munmap(all, size);
      --*alive;
    };
    std::string name = file.string(), handle;
    name.resize(64);
    for (const char one : name) handle += fmt::format("{:02x}", one);
    return {std::shared_ptr<char>(static_cast<char*>(memory), unmap), {{"handle", handle}, {"gpu", "file"}}};
  };
  return {at::kCPU, allocate, [waits = waits](at::Device) { ++*waits; }};
}

ImplementationError error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ImplementationError& error) {
    return error;
  }
  return {"nothing", "nothing was thrown"};
}

bool is_gone(int pid) {
  for (int i = 0; i < 500; ++i) {
    std::string name, state;
    std::ifstream stat(fmt::format("/proc/{}/stat", pid));
    if (!(stat >> pid >> name >> state) || state == "Z") return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace suites::implementation::tests
