#!/usr/bin/env python3
"""Mutants of the sources: copies of the product's files in which every mutant stands behind a switch.

  mutants.py list  [--all]                  the mutants, a line each; --all: every site, sampled or not
  mutants.py files                          the sources that have a copy
  mutants.py write --out FOLDER             the copies, and the table that the program holds (source_mutants.inc)
  mutants.py check --commands FILE          compiles every copy (-fsyntax-only) by this compile_commands.json, of a build with
                                            NSA_VALIDATE_UNITY=OFF, and puts what does not compile into refused.txt, until all does

The same sources give the same mutants. README.md says how they are built and run.
"""
import argparse
import hashlib
import json
import pathlib
import re
import shlex
import subprocess
import sys

import lexer
import sites

ROOT = pathlib.Path(__file__).resolve().parents[3]
REFUSED = pathlib.Path(__file__).resolve().parent / "refused.txt"
# Where mutants are made, and how many: 200. The oracle (nsa/reference) is never mutated.
ROOMS = {"model": (45, ("nsa/model",)), "ops": (25, ("nsa/ops.cpp", "nsa/attend.cpp")), "sdpa": (60, ("nsa/sdpa",)), "decode": (30, ("nsa/decode",)),
         "train": (40, ("nsa/train",))}
NO_GRAPH = ("nsa/decode", "nsa/sdpa/select.cpp", "nsa/train")  # nothing is differentiated there: no `detached`
HEADERS = {False: "suites/faults/sources/switch.hpp", True: "suites/faults/sources/tensors.hpp"}


def files(root=ROOT):
    """Room -> its sources. Those of a folder alone: nsa/train/run is a program of its own."""
    found = {}
    for room, (_, places) in ROOMS.items():
        paths = [path for place in places for path in (sorted((root / place).glob("*.cpp")) if (root / place).is_dir() else [root / place])]
        found[room] = [path.relative_to(root).as_posix() for path in paths]
        if not found[room]:
            raise FileNotFoundError(f"{root}: no source of {places}")
    return found


def read_refused():
    lines = (line.split("#")[0].strip() for line in REFUSED.read_text().splitlines()) if REFUSED.exists() else ()
    return {line for line in lines if line}


def sites_of(source, file):
    found = sites.Finder(source, file).find()
    return [site for site in found if not (site.kind == "detached" and file.startswith(NO_GRAPH))]


def rank(name):
    return hashlib.sha256(name.encode()).hexdigest()


def sample(candidates, count):
    """`count` of them: kinds in turn, and of each kind what is of the file that has fewest so far."""
    by_kind = {kind: sorted((s for s in candidates if s.kind == kind), key=lambda s: rank(s.name)) for kind in sites.KINDS}
    taken, per_file = [], {}
    while len(taken) < count and any(by_kind.values()):
        for kind in sites.KINDS:
            if by_kind[kind] and len(taken) < count:
                site = min(by_kind[kind], key=lambda s: (per_file.get(s.file, 0), rank(s.name)))
                by_kind[kind].remove(site)
                per_file[site.file] = per_file.get(site.file, 0) + 1
                taken.append(site)
    return taken


class Catalogue:
    """The mutants, numbered from 1, by file and place."""

    def __init__(self, root=ROOT, refused=None, everything=False):
        refused = read_refused() if refused is None else refused
        self.files, self.sources, self.mutants = files(root), {}, []
        for room, (count, _) in ROOMS.items():
            candidates = []
            for file in self.files[room]:
                self.sources[file] = lexer.Source((root / file).read_text())
                candidates += [site for site in sites_of(self.sources[file], file) if site.name not in refused]
            self.mutants += candidates if everything else sample(candidates, count)
        order = {file: n for n, file in enumerate(self.sources)}
        self.mutants.sort(key=lambda s: (order[s.file], s.begin, s.end, s.name))
        self.numbered = list(enumerate(self.mutants, 1))

    def copy(self, file):
        own = [(number, site) for number, site in self.numbered if site.file == file]
        source = self.sources[file]
        if not own:
            return source.text
        text = sites.write(source, own)
        tensors = re.search(r"::nsa::mutant::(?:detached|rounded|narrower)\(", text) or "#include <ATen/ATen.h>" in text or "torch" in text
        return f'#include "{HEADERS[bool(tensors)]}"\n{text}'

    def table(self):
        rows = [f"{{{number}, {quoted(s.name)}, {quoted(f'{s.file}:{s.line}: {s.words}')}}},\n" for number, s in self.numbered]
        return "// Written by mutants.py.\n" + "".join(rows)


def quoted(text):
    return json.dumps(text, ensure_ascii=True)


def write_if_changed(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def write(out):
    catalogue = Catalogue()
    for file in catalogue.sources:
        write_if_changed(out / file, catalogue.copy(file))
    write_if_changed(out / "source_mutants.inc", catalogue.table())
    return catalogue


def command_for(entry, copy):
    """The words that compile an entry's file, with the copy in its place and nothing written."""
    words = shlex.split(entry["command"])
    words[words.index("-c") + 1] = str(copy)
    at = words.index("-o")
    del words[at:at + 2]
    return [*words, "-fsyntax-only", "-fmax-errors=0", "-fdiagnostics-format=json"]


def places(diagnostic, file):
    """Lines of the source that an error names: in its copy, which begins with one line of its own, each is one further."""
    found = {at["caret"]["line"] - 1 for at in diagnostic.get("locations", ()) if at["caret"]["file"].endswith(file)}
    for child in diagnostic.get("children", ()):
        found |= places(child, file)
    return found


def lines_with_errors(output, file):
    """Lines that the compiler refuses, each with its first reason."""
    found = {}
    for diagnostic in json.loads(output or "[]"):
        if diagnostic["kind"] in ("error", "fatal error"):
            for line in places(diagnostic, file):
                found.setdefault(line, diagnostic["message"])
    return found


def check_file(catalogue, file, entry, out):
    """Names of the mutants that do not compile, each with the compiler's reason."""
    copy = out / file
    write_if_changed(copy, catalogue.copy(file))
    done = subprocess.run(command_for(entry, copy), cwd=entry["directory"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return {}
    try:
        wrong = lines_with_errors(done.stderr[done.stderr.index("["):].splitlines()[0], file)
    except ValueError as error:
        raise RuntimeError(f"{file}: {done.stderr[-2000:]}") from error
    source, found = catalogue.sources[file], {}
    for site in catalogue.mutants:
        lines = range(site.line, source.line(site.end) + 1)
        hit = [line for line in lines if line in wrong]
        if site.file == file and hit:
            found[site.name] = wrong[hit[0]]
    if not found:
        raise RuntimeError(f"{file} does not compile, and no mutant stands there: {wrong}")
    return found


def check_alone(catalogue, file, entry, out, names):
    """Of several suspects of one line those that are refused alone."""
    refused = {}
    for name in names:
        catalogue_of_one = [(n, s) for n, s in catalogue.numbered if s.name == name]
        everything, catalogue.numbered = catalogue.numbered, catalogue_of_one
        try:
            if name in (found := check_file(catalogue, file, entry, out)):
                refused[name] = found[name]
        finally:
            catalogue.numbered = everything
    return refused


def check(commands, out):
    entries = {pathlib.Path(e["file"]).as_posix(): e for e in json.loads(commands.read_text())}
    sound = {}  # copies that compile
    while True:
        catalogue, any_refused = Catalogue(), False
        for file in catalogue.sources:
            text = catalogue.copy(file)
            if sound.get(file) == re.sub(r"\(\d+", "(", text):  # numbers alone differ
                continue
            entry = next((e for path, e in entries.items() if path.endswith("/" + file)), None)
            if entry is None:
                raise RuntimeError(f"{commands} does not compile {file}; is it of a build with NSA_VALIDATE_UNITY=OFF?")
            found = check_file(catalogue, file, entry, out)
            if len(found) > 1:
                found = check_alone(catalogue, file, entry, out, found) or found
            print(f"{file}: {len(found)} refused", flush=True)
            if found:
                any_refused = True
                with REFUSED.open("a") as log:
                    log.writelines(f"{name}  # {' '.join(reason.split())[:100]}\n" for name, reason in sorted(found.items()))
            else:
                sound[file] = re.sub(r"\(\d+", "(", text)
        if not any_refused:
            print(f"{len(catalogue.mutants)} mutants of {len(catalogue.sources)} files: all compile")
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list").add_argument("--all", action="store_true")
    verbs.add_parser("files")
    verbs.add_parser("write").add_argument("--out", type=pathlib.Path, required=True)
    checking = verbs.add_parser("check")
    checking.add_argument("--commands", type=pathlib.Path, required=True)
    checking.add_argument("--out", type=pathlib.Path, required=True, help="folder for the copies")
    given = parser.parse_args()
    if given.verb == "files":
        print("\n".join(file for own in files().values() for file in own))
    elif given.verb == "list":
        catalogue = Catalogue(everything=given.all)
        for site in catalogue.mutants:
            print(f"{site.name:44} {site.file}:{site.line}: {site.words}")
        print(f"{len(catalogue.mutants)} mutants", file=sys.stderr)
    elif given.verb == "write":
        write(given.out)
    else:
        check(given.commands, given.out.resolve())


if __name__ == "__main__":
    main()
