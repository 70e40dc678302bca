#!/usr/bin/env bash
# READMEs are short and name what exists; the figures are those that were measured. Run at the root.
set -euo pipefail

if ! command -v python3 >/dev/null; then
  echo "skipped: no python3 here"
  exit 77
fi
exec python3 setup/tests/check_documents.py
