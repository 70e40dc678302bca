"""Writes the page of results from reports: python page.py NAME=report.json[,report.json] ... > ../docs/implementations.md

One table of implementations by suites (passed, failed, not applicable), then of each what was found, in words, and
how long its forward passes took.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections import Counter
from pathlib import Path

WORDS = {"pass": "passed", "fail": "failed", "skip": "not applicable"}


def outcome(case: dict) -> str:
    failing = [f for f in case["findings"] if f["severity"] not in ("info", "warn")]
    return "fail" if failing else "pass" if case["status"] == "pass" else "skip"


def row(name: str, report: dict, suites: list[str]) -> str:
    cells = []
    for suite in suites:
        cases = next((s["cases"] for s in report["suites"] if s["name"] == suite), [])
        counts = Counter(outcome(case) for case in cases)
        cells.append(" / ".join(str(counts[kind]) for kind in WORDS) if cases else "–")
    return f"| {name} | " + " | ".join(cells) + " |"


def findings(report: dict) -> list[str]:
    lines: dict[str, list[str]] = {}
    for suite in report["suites"]:
        for case in suite["cases"]:
            for finding in case["findings"]:
                if finding["severity"] not in ("info", "warn"):
                    first = finding["message"].splitlines()[0]
                    lines.setdefault(f"{finding['code']} {finding['title']}", []).append(f"`{case['id']}`: {first}")
    return [wrapped(f"- **{title}** ({len(cases)}): {cases[0]}") for title, cases in lines.items()]


def times(report: dict) -> list[str]:
    """A row for every function that was timed."""
    rows = []
    cases = [case for suite in report["suites"] for case in suite["cases"]]
    for case in (case for case in cases if case["id"].startswith("throughput/implementation_time")):
        told = {metric["name"]: metric["value"] for metric in case["metrics"]}
        if case["status"] != "pass":
            continue
        own, ours = told["forward pass in its process"], told["forward pass by our own functions"]
        function = case["id"].partition("op=")[2].rstrip("]")
        share, tokens = told["share of the way there and back"], told["tokens"]
        by = case.get("facts", {}).get("our route", "")
        rows.append(f"| {function} | {tokens:.0f} | {own:.3g} | {share:.0f} % | {ours:.3g} | {by} |")
    return rows


def wrapped(text: str) -> str:
    return textwrap.fill(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def main() -> None:
    reports = {}
    for argument in sys.argv[1:]:
        name, _, files = argument.partition("=")
        first, *others = (json.loads(Path(file).read_text()) for file in files.split(","))
        for other in others:
            first["suites"] += other["suites"]
        reports[name] = first
    # Those of Suite::judges_implementation, which reports do not tell, as columns in the order of the page.
    suites = ["parity", "autograd", "s_sweep", "throughput"]
    print("# What implementations hold\n")
    print("Made by `adapters/page.py` from reports of `nsa-validate --implementation FILE --suite", end=" ")
    print(f"{','.join(suites)}`: {', '.join(WORDS.values())}.\n")
    print("| implementation | " + " | ".join(suites) + " |\n" + "|---" * (len(suites) + 1) + "|")
    for name, report in reports.items():
        print(row(name, report, suites))
    for name, report in reports.items():
        own = report["provenance"].get("implementation", {})
        print(f"\n## {name}\n\n{own.get('name', '?')} {own.get('version', '')}, torch {own.get('torch', '?')},", end=" ")
        print(f"{report['run'].get('device', '')}: computes {', '.join(own.get('computes', []))}.\n")
        print("\n".join(findings(report)) or "Nothing was found.")
        rows = times(report)
        if rows:
            print("\n| function | tokens | ms in its process | on the way there and back | ms by our own functions | which |")
            print("|---|---|---|---|---|---|\n" + "\n".join(rows))


if __name__ == "__main__":
    main()
