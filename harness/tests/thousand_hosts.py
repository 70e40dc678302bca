#!/usr/bin/env python3
"""thousand_hosts.py PROGRAM RUN [HOSTS]: a fleet of made-up hosts, from the journal of one real run, and its merge.
Without a run ("") the fake program of the harness's tests makes one.

Each host is that run under a name of its own, with figures of speed that scatter by 1 %; some are not as they should be:
one is slow, one has another driver, one is cut off, one is damaged. Says how long the merge took and how much memory;
fails when it misses one of those, accuses another, or needs more than 1 GiB. A time decides nothing.
"""
import json
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time

MOST_MEMORY_KIB = 1 << 20
SLOW, DRIVER, CUT, DAMAGED = 3, 5, 7, 9


def is_speed(unit):
    return unit.endswith("/s") or unit in ("s", "ms", "us", "ns")


def line_of(event):
    return json.dumps(event, separators=(",", ":")) + "\n"


def with_speed(events):
    """A run without a figure of speed gets one, in a case that passed: slow hosts are looked for by it."""
    if any(event["event"] == "metric" and is_speed(event["unit"]) for event in events):
        return events
    at = next(i for i, event in enumerate(events) if event["event"] == "case_end" and event["status"] == "pass")
    case = events[at]["case"]
    events.insert(at, {"event": "metric", "t": events[at]["t"], "case": case, "name": "made_up", "value": 1000.0, "unit": "tok/s"})
    return [{**event, "seq": i} for i, event in enumerate(events)]


def calm(events):
    """What was measured on a busy machine is not judged; these hosts were calm."""
    for event in events:
        if event["event"] == "fact" and event["key"] == "load":
            event["value"]["busy"] = False
    return events


def parts_of(events):
    """All but the first event as texts, cut where the value of a figure of speed stands: (value, unit)."""
    parts = [""]
    for event in events[1:]:
        if event["event"] != "metric" or not is_speed(event["unit"]) or isinstance(event["value"], str):
            parts[-1] += line_of(event)
            continue
        before, after = line_of({**event, "value": "HERE"}).split('"HERE"', 1)
        parts[-1] += before
        parts += [(event["value"], event["unit"]), after]
    return parts


def host_of(parts, number, scatter):
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        value, unit = part
        slower = (0.6 if unit.endswith("/s") else 1 / 0.6) if number == SLOW else 1
        text += repr(value * slower * scatter.lognormvariate(0, 0.01))
    if number == CUT:
        text = text[:-20]
    if number == DAMAGED:
        text = text[: len(text) // 2] + "\x00" + text[len(text) // 2 :]
    return text


def make_hosts(run, folder, hosts):
    """Returns the bytes of a host."""
    lines = (pathlib.Path(run) / "events.jsonl").read_text().splitlines()
    events = calm(with_speed([json.loads(line) for line in lines]))
    begin, parts, scatter = events[0], parts_of(events), random.Random(1)
    for i in range(hosts):
        name = f"node{i:05}"
        begin["run"]["id"] = f"run-{i}"
        begin["provenance"]["host"]["hostname"] = name
        begin["provenance"].setdefault("cuda", {})["driver"] = "570.10" if i == DRIVER else "580.82"
        text = line_of(begin) + host_of(parts, i, scatter)
        (folder / name).mkdir()
        (folder / name / "events.jsonl").write_text(text)
    return len(text)


def merge(program, folder, hosts):
    begin = time.monotonic()
    done = subprocess.run([program, "merge", folder, "--expect", str(hosts), "--out", folder / "report", "--quiet"], capture_output=True, text=True)
    seconds = time.monotonic() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss


def faults(folder, hosts):
    fleet = json.loads((folder / "report/fleet.json").read_text())
    named = lambda code: [fleet["hosts"][i]["name"] for f in fleet["findings"] if f["code"] == code for i in f["hosts"]]
    if len(fleet["hosts"]) != hosts:
        yield f"{len(fleet['hosts'])} hosts in the report"
    for code, host in (("NSA-X015", DAMAGED), ("NSA-X018", DRIVER), ("NSA-X019", SLOW)):
        if named(code) != [f"node{host:05}"]:
            yield f"{code} names {named(code)}, not node{host:05} alone"
    unfinished = [host["name"] for host in fleet["hosts"] if host["state"] == "unfinished"]
    if unfinished != [f"node{CUT:05}"]:
        yield f"without their end are {unfinished}"
    if fleet["verdict"] == "READY" or fleet["exit_code"] != 2:
        yield f"{fleet['verdict']}, exit code {fleet['exit_code']}"


def main():
    program, run = sys.argv[1:3]
    hosts = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "hosts"
        folder.mkdir()
        if not run:
            run = pathlib.Path(name) / "run"
            subprocess.run([program, "--suite", "good", "--out", run, "--quiet"], check=True)
        size = make_hosts(run, folder, hosts)
        done, seconds, cpu, memory = merge(program, folder, hosts)
        print(done.stdout + done.stderr, end="")
        found = list(faults(folder, hosts)) if done.returncode == 2 else [f"exit code {done.returncode}"]
        if memory > MOST_MEMORY_KIB:
            found.append(f"{memory} KiB of memory, at most {MOST_MEMORY_KIB} are allowed")
    print(f"{hosts} hosts of {size >> 10} KiB: {seconds:.2f} s ({cpu:.2f} s of CPU), {memory >> 10} MiB")
    for fault in found:
        print("wrong:", fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
