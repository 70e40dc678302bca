#!/usr/bin/env python3
"""Kills processes of `nsa-validate --case distributed/...` at random, and counts what stays behind.

    random_kills.py NSA_VALIDATE [TIMES [SEED]]        (default 100 times, seed 1)

Each time it starts a case of three ranks, waits for a random while, kills one of its processes (supervisor, worker, helper or
rank, each as likely) with SIGKILL, and then looks for processes of that run for up to 30 s. Prints a line a kill and the sum;
exit code 1 when anything stayed behind, or when not one kill of each kind struck. Not part of CI: a hundred take a quarter of an hour.
"""
import collections
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

CASE = "distributed/run[ranks=3,steps=20]"
LONGEST_S = 30


def command_lines():
    """pid -> (parent, words) of every process that can be read."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
            with open(f"/proc/{pid}/stat") as file:
                state, parent = file.read().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        if state != "Z":
            found[int(pid)] = (int(parent), words)
    return found


def of_run(root, folder, seen):
    """Pids of the run: descendants of `root`, and whoever names its folder or was seen before as one of them."""
    every = command_lines()
    mine = {root} & every.keys()
    grown = True
    while grown:
        more = {pid for pid, (parent, _) in every.items() if parent in mine} - mine
        mine |= more
        grown = bool(more)
    for pid, (_, words) in every.items():
        if any(folder in word for word in words) or seen.get(pid) == words:
            mine.add(pid)
    return {pid: every[pid][1] for pid in mine}


def kind_of(pid, root, words):
    if pid == root:
        return "supervisor"
    return "rank" if "__rank" in words else "worker" if "__worker" in words else "helper"


def once(program, dice, folder):
    run = subprocess.Popen([program, "--case", CASE, "--level", "standard", "--device", "cpu", "--out", folder],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if dice.random() < 0.75:  # when there are ranks
        end = time.monotonic() + 20
        while time.monotonic() < end and run.poll() is None and not any(
                "__rank" in words for words in of_run(run.pid, folder, {}).values()):
            time.sleep(0.05)
    time.sleep(dice.uniform(0, 3))
    alive = of_run(run.pid, folder, {})
    by_kind = collections.defaultdict(list)
    for pid, words in alive.items():
        by_kind[kind_of(pid, run.pid, words)].append(pid)
    if not by_kind:
        return "nothing", 0.0, []
    kind = dice.choice(sorted(by_kind))
    struck = time.monotonic()
    try:
        os.kill(dice.choice(by_kind[kind]), signal.SIGKILL)
    except ProcessLookupError:
        kind = "nothing"
    left = alive
    while time.monotonic() - struck < LONGEST_S + 60:
        run.poll()  # reaps it
        left = of_run(run.pid, folder, alive)
        if not left:
            break
        if kind == "supervisor" and time.monotonic() - struck > LONGEST_S:  # nobody goes on with the run then
            break
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    run.wait()
    return kind, time.monotonic() - struck, [f"{pid} {' '.join(words)}" for pid, words in left.items()]


def main():
    program = sys.argv[1]
    times = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    dice = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    kinds, left_behind = collections.Counter(), 0
    for number in range(times):
        parent = tempfile.mkdtemp(prefix="random-kills-")
        kind, seconds, left = once(program, dice, os.path.join(parent, "run"))
        shutil.rmtree(parent, ignore_errors=True)
        kinds[kind] += 1
        left_behind += len(left)
        print(f"{number + 1}: {kind} killed, all gone after {seconds:.1f} s" if not left else
              f"{number + 1}: {kind} killed, LEFT after {seconds:.1f} s: {left}", flush=True)
    print(f"{times} kills ({dict(kinds)}), {left_behind} processes left behind")
    return 1 if left_behind or not {"supervisor", "worker", "rank"} <= kinds.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
