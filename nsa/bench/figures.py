#!/usr/bin/env python3
"""Makes figures.md, the one place for measured figures, from measurements.

    nsa/bench/figures.py > nsa/bench/figures.md                          # from fixtures/bench/measured_h200.csv
    nsa/bench/figures.py --commit edd7357 nsa.json out/run >> fixtures/bench/measured_h200.csv
    nsa/bench/figures.py --check                                         # is figures.md what its measurements give?

The second form turns new measurements into rows of that file: JSON of nsa-bench (--benchmark_out=nsa.json
--benchmark_out_format=json) or of python/example/compare.py (--json), or the folder of an nsa-train run (run.json,
metrics.csv). A later row replaces an earlier one of the same measurement.
"""
import argparse
import csv
import datetime
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEASURED = ROOT / "fixtures/bench/measured_h200.csv"
PEERS = ROOT / "fixtures/bench/peers_h200.csv"
FIGURES = ROOT / "nsa/bench/figures.md"
COLUMNS = ["commit", "date", "program", "subject", "config", "choice", "mode", "S", "graph", "value", "unit"]


def read_csv(path):
    """The rows and the comment of the first line."""
    lines = path.read_text().splitlines()
    return list(csv.DictReader(lines[1:])), lines[0].lstrip("# ")


def rows_of_bench(report, commit):
    """nsa-bench's medians: SUBJECT/BACKEND/CONFIG/MODE[/CHOICE][/graph]/S:LENGTH."""
    context = report["context"]
    commit = commit or context.get("git_commit", "unknown")[:7]
    for run in report["benchmarks"]:
        if run.get("aggregate_name") != "median" or run.get("error_occurred"):
            continue
        parts = run["run_name"].split("/")
        subject, backend, config, mode = parts[:4]
        if backend != "cuda":
            continue
        words = dict(part.split(":", 1) for part in parts[4:] if ":" in part)
        choice = next((part for part in parts[4:] if part in ("random", "drift")), "")
        graph = "graph" if "graph" in parts else ""
        for value, unit in ((run.get("real_time"), "ms"), (run.get("roof_pct"), "roof_pct"), (run.get("peak_mib"), "peak_mib")):
            if value is not None:
                yield [commit, context["date"][:10], "nsa-bench", subject, config, choice, mode, words["S"], graph, f"{value:.4g}", unit]


def rows_of_train(folder, commit):
    """Tokens a second of the last row of a run's metrics.csv: the steps since the row before."""
    record = json.loads((folder / "run.json").read_text())
    *_, last = csv.DictReader((folder / "metrics.csv").read_text().splitlines())
    config, start = record["config"], record["starts"][-1]
    graph = "graph" if start["device"]["type"].startswith("cuda") and config["train.cuda_graph"] != "false" else ""
    yield [commit or "unknown", start["time"][:10], "nsa-train", "step", config["model.name"], "",
           f"B={config['train.batch_size']}", config["train.seq_len"], graph, f"{float(last['tok_per_s']):.0f}", "tok/s"]


def rows_of_compare(report, commit):
    """Tokens a second of a PyTorch model in training, by the attention within it."""
    for row in report["rows"]:
        if "tok_per_s" in row:
            yield [commit or "unknown", datetime.date.today().isoformat(), "compare.py", row["variant"], "m7c_125m", row["mode"],
                   f"B={row['batch']}", report["S"], "", row["tok_per_s"], "tok/s"]


class Table:
    def __init__(self, rows):
        self.rows = rows
        self.found = {}
        for row in rows:  # a later row replaces an earlier one
            self.found[tuple(row[key] for key in ("program", "subject", "config", "choice", "mode", "S", "graph", "unit"))] = row

    def get(self, subject, config, choice, mode, length, graph="", unit="ms", program="nsa-bench"):
        return self.found.get((program, subject, config, choice, mode, str(length), graph, unit))

    def pair(self, *key, **more):
        """'forward / forward and backward', and the commit."""
        found = [self.get(*key[:3], mode, *key[3:], **more) for mode in ("fwd", "fwd_bwd")]
        return " / ".join(row["value"] if row else "-" for row in found), next((row["commit"] for row in found if row), "-")


def best_peer(peers, config, length):
    """The fastest other implementation of the whole method with this geometry, on random choices where it was measured."""
    for choice in ("random", "drift"):
        times = [[float(row["ms"]) for row in peers
                  if (row["what"], row["index"], row["config"], row["mode"], row["S"]) == ("full NSA", choice, config, mode, str(length))]
                 for mode in ("fwd", "fwd_bwd")]
        if all(times):
            return " / ".join(f"{min(of_mode):#.3g}".rstrip(".") for of_mode in times) + ("" if choice == "random" else f" ({choice})")
    return "- / -"


def markdown(rows, origin, peers, peers_origin):
    table = Table(rows)
    dates = {row["commit"]: row["date"] for row in rows}
    out = []
    say = out.append
    say("# Measured figures")
    say("")
    say("Generated by `nsa/bench/figures.py` from `fixtures/bench/measured_h200.csv` and `fixtures/bench/peers_h200.csv`: do not edit.")
    say("All other documents point here. Measured on " + origin.split(";")[0] + ".")
    say("Two cards, or one card on two days, differ by 2 to 3 %. \"f / fb\" is ms of the forward pass / of forward and backward.")
    say("")
    say("| commit | date |")
    say("|---|---|")
    for commit, date in sorted(dates.items(), key=lambda item: (item[1], item[0])):
        say(f"| {commit} | {date} |")
    say("")
    say("## The whole attention, beside other implementations")
    say("")
    say("    nsa-bench --backend cuda --choice random --config C --length S --benchmark_filter='^nsa'")
    say("")
    say("Pooling, the three branches, the choice of blocks and the gated sum; B = 1, bf16, random choice. b is without window, as")
    say("the other implementations have none for it. \"other\" is the fastest public implementation of the same geometry, on")
    say("random choices unless it says drift.")
    say("")
    say("| config | query heads, groups, widths | S | other f / fb | here f / fb | here, CUDA graph | commit |")
    say("|---|---|---|---|---|---|---|")
    shape = {"a": "12, 2, 64", "b": "64, 4, 192/128", "c": "64, 4, 128"}
    whole = sorted({(row["config"], int(row["S"])) for row in rows if row["subject"].startswith("nsa") and row["unit"] == "ms"})
    for config, length in whole:
        subject = "nsa_no_window" if config == "b" else "nsa"
        plain, commit = table.pair(subject, config, "random", length)
        graph, _ = table.pair(subject, config, "random", length, "graph")
        other = best_peer(peers, config, length)
        say(f"| {config} | {shape[config]} | {length:,} | {other} | {plain} | {graph} | {commit} |")
    say("")
    say(f"The others: {peers_origin.split(';')[0]}.")
    say("")
    say("## Branch by branch")
    say("")
    say("    nsa-bench --backend cuda --config C --length S --benchmark_filter='^(compressed|select|selected|window|combine)/'")
    say("")
    say("| subject | config | choice | S | f / fb | share of the roofline, % | commit |")
    say("|---|---|---|---|---|---|---|")
    order = ["compressed", "select", "selected", "window", "combine"]
    parts = sorted({(row["config"], int(row["S"]), order.index(row["subject"]), row["choice"]) for row in rows
                    if row["subject"] in order and row["unit"] == "ms"}, key=lambda key: (key[0], -key[1], key[2], key[3] != "random"))
    for config, length, subject, choice in parts:
        times, commit = table.pair(order[subject], config, choice, length)
        roof, _ = table.pair(order[subject], config, choice, length, unit="roof_pct")
        say(f"| {order[subject]} | {config} | {choice or '-'} | {length:,} | {times} | {roof} | {commit} |")
    say("")
    say("The most memory above the inputs, c, forward and backward, in MiB (`peak_mib` of the whole):")
    say("")
    memory = [row for row in table.found.values() if row["unit"] == "peak_mib"]
    say("| S | " + " | ".join(f"{int(row['S']):,}" for row in memory) + " | commit |")
    say("|---|" + "---|" * (len(memory) + 1))
    say("| MiB | " + " | ".join(f"{float(row['value']):,.0f}" for row in memory) + f" | {memory[0]['commit']} |")
    say("")
    say("## Training")
    say("")
    say("    nsa-train --config configs/models/m7c_125m.yaml --set train.seq_len=2048 --set train.batch_size=B \\")
    say("        --set train.precision=bf16 --set train.data=synthetic --set train.warmup_steps=20 --set train.log_every=110 --steps 220 --out DIR")
    say("")
    say("The default step is captured as a CUDA graph; the ordinary one has `--set train.cuda_graph=false`.")
    say("")
    say("| model | batch | S | step | tokens/s | commit |")
    say("|---|---|---|---|---|---|")
    for row in table.found.values():
        if row["program"] == "nsa-train":
            step = "captured" if row["graph"] else "ordinary"
            say(f"| {row['config']} | {row['mode']} | {row['S']} | {step} | {int(row['value']):,} | {row['commit']} |")
    say("")
    say("## In PyTorch")
    say("")
    say("    python3 python/example/compare.py --modes eager,compile,graph --steps 40 --json compare.json")
    say("")
    say("The same model (S = 2048, bf16) with our wheel's layer, with the functions of mdy666/Scalable-Flash-Native-Sparse-Attention,")
    say("whose layer has one key and value for all branches (ours one for each), and dense; tokens/s in one run.")
    say("")
    modes = ("eager", "compile", "graph")
    say("| attention | batch | " + " | ".join(modes) + " | commit |")
    say("|---|---|---|---|---|---|")
    compared = {(row["subject"], row["mode"]): row for row in table.found.values() if row["program"] == "compare.py"}
    for (subject, batch), row in compared.items():
        of_modes = [table.get(subject, "m7c_125m", mode, batch, 2048, unit="tok/s", program="compare.py") for mode in modes]
        say(f"| {subject} | {batch} | " + " | ".join(f"{int(x['value']):,}" if x else "-" for x in of_modes) + f" | {row['commit']} |")
    say("")
    say("## Validation")
    say("")
    say("| command | result | figure | commit |")
    say("|---|---|---|---|")
    for row in table.found.values():
        if row["program"] == "nsa-validate":
            case = "/" in row["subject"]
            command = f"nsa-validate --case {row['subject']}" if case else f"nsa-validate --suite {row['subject']}"
            result = f"cost of the watch in a captured step, {row['mode']}, S = {row['S']}" if case else row["mode"]
            say(f"| `{command}` | {result} | {row['value']} {row['unit']} | {row['commit']} |")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=pathlib.Path, help="JSON of nsa-bench and compare.py, folders of nsa-train")
    parser.add_argument("--commit", help="the commit that was measured")
    parser.add_argument("--check", action="store_true", help="compare with the committed figures.md")
    arguments = parser.parse_args()
    if arguments.sources:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        for source in arguments.sources:
            if source.is_dir():
                rows = rows_of_train(source, arguments.commit)
            else:
                report = json.loads(source.read_text())
                rows = (rows_of_bench if "benchmarks" in report else rows_of_compare)(report, arguments.commit)
            writer.writerows(rows)
        return 0
    text = markdown(*read_csv(MEASURED), *read_csv(PEERS))
    if not arguments.check:
        sys.stdout.write(text)
        return 0
    if FIGURES.read_text() == text:
        return 0
    print("nsa/bench/figures.md is not what its measurements give; make it again: nsa/bench/figures.py > nsa/bench/figures.md")
    return 1


if __name__ == "__main__":
    sys.exit(main())
