"""Where the host's time of a forward pass goes: python3 python/bench/host_time.py [--profile]

m7c_125m's attention by our kernels, B = 1; what the host needs does not depend on S. A row is the median, and the 10 %
and 90 % points, of rounds of some calls in a row, so few that their launches fit the GPU's queue: the host waits for
nothing.
`nsa.attention` is what people call; below it stands what it is made of:

    from Python    the operator of o alone, that of ten results, and attend, which is without the compression
    from C++       the first of them in a loop of TorchScript: no Python, no arguments to take apart
    a launch       of torch's smallest kernel, from Python: a forward pass has five with NSA_GRAPH_CALLS=0, else one CUDA graph
    memory         one torch.empty on the device, from Python

--profile counts the calls of the CUDA runtime in a forward pass, and says how long each takes while the profiler looks on.
Exit status 4 without a GPU; `--device cpu` serves a build over the kernels' emulation.
"""

import argparse
import collections
import sys
import time
import warnings

import torch

import nsa

OPS = torch.ops.nsa
Q, GROUPS, WIDTH = 12, 2, 64
LAUNCHES = 5  # of a forward pass that goes in one: mean, compressed, choice of blocks, selected, window with the sum


def operands(device, S, needs):
    generator = torch.Generator().manual_seed(0)

    def draw(heads):
        x = torch.randn(1, S, heads, WIDTH, generator=generator)
        return x.to(device, torch.bfloat16).requires_grad_(needs)

    keys_and_values = [draw(GROUPS) for _ in range(6)]
    gates = torch.rand(1, S, GROUPS, 3, generator=generator).to(device, torch.bfloat16).requires_grad_(needs)
    return draw(Q), *keys_and_values, gates


@torch.jit.script
def from_cpp(q, k, v, k_sel, v_sel, k_win, v_win, gates, times: int):
    for _ in range(times):  # of the o before: TorchScript leaves out what nobody asks for, or what it has computed
        q = torch.ops.nsa.attention_output(
            q, k, v, k_sel, v_sel, k_win, v_win, gates, None, None, 32, 16, 64, 16, 512, "cuda"
        )
    return q


def microseconds(call, times, rounds, wait):
    took = []
    for _ in range(rounds):
        wait()
        call()  # wakes the GPU up
        begin = time.perf_counter()
        for _ in range(times):
            call()
        took.append((time.perf_counter() - begin) / times * 1e6)
    return [sorted(took)[int(share * (rounds - 1))] for share in (0.5, 0.1, 0.9)]


def profiled(call, calls):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as seen:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    total = collections.defaultdict(lambda: [0, 0.0])
    for event in seen.events():
        runtime = event.device_type == torch.autograd.DeviceType.CPU and event.name.startswith("cu")
        if runtime and "Synchronize" not in event.name:
            total[event.name][0] += 1
            total[event.name][1] += event.cpu_time_total
    for name, (count, took) in sorted(total.items()):
        print(f"  {name:40s} {count / calls:5.1f} a forward pass, {took / count:6.2f} us each")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true", help="count the calls of the CUDA runtime")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--length", type=int, default=2048, metavar="S", help="tokens (%(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help="(%(default)s)")
    arguments = parser.parse_args()
    gpu = arguments.device == "cuda"
    if gpu and not torch.cuda.is_available():
        print("host_time: there is no GPU here", file=sys.stderr)
        return 4
    wait = torch.cuda.synchronize if gpu else lambda: None
    print(torch.cuda.get_device_name() if gpu else "cpu", f"torch {torch.__version__}, S = {arguments.length}", sep=", ")

    def row(name, call, times=20, share=1):
        middle, low, high = (x / share for x in microseconds(call, times, arguments.rounds, wait))
        print(f"{name:58s} {middle:7.2f} us (10 % {low:.2f}, 90 % {high:.2f})", flush=True)
        return middle

    rest = (None, None, *nsa.Geometry(), "cuda")
    for needs in (False, True):
        x = operands(arguments.device, arguments.length, needs)
        q, k, v, gates = x[0], x[1:7:2], x[2:7:2], x[7]
        with torch.no_grad():
            k_cmp, v_cmp = (y.requires_grad_(needs) for y in nsa.compress(x[1], x[2], backend="cuda"))
        print(f"gradients {needs}")
        compressed = (q, k_cmp, v_cmp, *x[3:])
        calls = {
            "nsa.attention": lambda: nsa.attention(q, k, v, gates, backend="cuda"),  # noqa: B023
            "nsa.attention, backend auto": lambda: nsa.attention(q, k, v, gates),  # noqa: B023
            "from Python: torch.ops.nsa.attention_output": lambda: OPS.attention_output.default(*x, *rest),  # noqa: B023
            "from Python: torch.ops.nsa.attention": lambda: OPS.attention.default(*x, *rest),  # noqa: B023
            "from Python: torch.ops.nsa.attend": lambda: OPS.attend.default(*compressed, *rest),  # noqa: B023
        }
        for name, call in calls.items():
            row(name, call)
        if not needs:  # TorchScript would record more than we do
            row("from C++: attention_output", lambda: from_cpp(*x, 20), 1, 20)  # noqa: B023
    print("parts")
    if gpu:
        launch = row("a launch", lambda: torch.cuda._sleep(0))
        print(f"  so {LAUNCHES} launches are {LAUNCHES * launch:.1f} us")
    row("memory", lambda: torch.empty(q.shape, dtype=q.dtype, device=q.device))
    if arguments.profile and gpu:
        print("calls of the CUDA runtime in nsa.attention with gradients, profiled")
        profiled(lambda: nsa.attention(q, k, v, gates, backend="cuda"), 20)
    return 0


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    sys.exit(main())
