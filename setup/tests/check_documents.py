#!/usr/bin/env python3
"""Documents that stay true: READMEs are short, what they name exists, and the figures are those that were measured.

Run at the root. A folder with more than 16 sources, tests apart, has a README. Of every document (*.md):
- a README has at most 120 lines;
- the target of a relative link exists;
- a path in backticks that begins with a folder of this tree exists (`*` and `NAME` stand for anything);
- a finding code (NSA-A001) and a flag (NSA_USE_CUDA) occur in the sources.
"""
import collections
import pathlib
import re
import subprocess
import sys

MOST_LINES = 120
MOST_SOURCES = 16  # of a folder without a README
FOLDERS = ("adapters", "base", "configs", "docs", "example", "fixtures", "fuzz", "harness", "nsa", "python", "reports", "setup", "suites")
CODE = (".cpp", ".hpp", ".cu", ".cuh", ".py")
SOURCES = (".cpp", ".hpp", ".def", ".cu", ".cuh", ".cc", ".in", ".cmake", ".txt", ".sh", ".py", ".json")


def exists(root, folder, path):
    """Whether a path, from the document's folder or from the root, names something. Capitals stand for any name."""
    pattern = re.sub(r"\b(?!README)[A-Z][A-Z_]+(?=/|\.|_[a-z]|$)", "*", path)
    return any(any(base.glob(form)) for base in (folder, root) for form in (pattern, pattern + ".*") if form.strip("/"))


def faults(root, document, words):
    text = document.read_text()
    lines = text.count("\n")
    if document.name == "README.md" and lines > MOST_LINES:
        yield f"{lines} lines, at most {MOST_LINES} are allowed; what was tried goes to history.md beside it"
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target and not exists(root, document.parent, target):
            yield f"the link to {target} leads nowhere"
    for path in re.findall(r"`([\w.*/-]+)`", text):
        if path.split("/")[0] in FOLDERS and "/" in path and path not in words and not exists(root, document.parent, path.rstrip("/")):
            yield f"there is no {path}"
    for code in sorted(set(re.findall(r"\bNSA-[A-Z]\d{3}\b", text))):
        if code not in words:
            yield f"{code} is no finding code of the sources"
    for flag in sorted(set(re.findall(r"\bNSA_[A-Z0-9_]*[A-Z0-9]\b(?!\*)", text))):
        if not re.search(rf"\b{flag}\b", words):
            yield f"the sources know no {flag}"


def unexplained(root, files):
    """Folders with many sources, tests apart, and no README."""
    counts = collections.Counter(
        file.parent for file in files if file.suffix in CODE and "tests" not in file.relative_to(root).parts)
    for folder, count in counts.items():
        if count > MOST_SOURCES and not (folder / "README.md").exists():
            yield f"{folder.relative_to(root)}: {count} sources and no README.md; at most {MOST_SOURCES} go without"


def main():
    root = pathlib.Path.cwd()
    places = [root / folder for folder in FOLDERS]
    files = sorted(file for place in places for file in place.rglob("*") if file.is_file())
    words = "\n".join(file.read_text(errors="replace") for file in files if file.suffix in SOURCES)
    documents = [*(root / name for name in ("README.md", "GUIDE.md", "CONTRIBUTING.md")), *(file for file in files if file.suffix == ".md")]
    found = [*unexplained(root, files)]
    found += [f"{document.relative_to(root)}: {fault}" for document in documents for fault in faults(root, document, words)]
    print("\n".join(found) or f"{len(documents)} documents: all true")
    generated = subprocess.run([root / "nsa/bench/figures.py", "--check"], check=False)
    return 1 if found or generated.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
