# Saying what goes on, and failing so that the reader knows what to do.
# shellcheck shell=bash disable=SC2154  # state: set by bootstrap.sh

say() { printf 'setup: %s\n' "$*"; }

# fail WHAT ADVICE: 4 is the exit code for infrastructure, as in the program's own table.
fail() {
  printf 'setup: FAILED: %s\nsetup: what to do: %s\n' "$1" "$2"
  exit 4
}

# step NAME WHAT ADVICE COMMAND...: runs COMMAND with its output in .setup/NAME.log. Shown are the lines that tell of
# progress, and the last lines when it fails.
step() {
  local name=$1 what=$2 advice=$3 log=$state/$1.log began=$SECONDS
  shift 3
  say "$what"
  if "$@" 2>&1 | tee "$log" | sed -u -n -E 's/^ *((Downloading|Using cached|Installing collected|Setting up) .{0,90}).*/  \1/p'
  then
    say "$what: done in $((SECONDS - began)) s"
  else
    tail -n 25 "$log" | sed 's/^/  /'
    fail "$what (step '$name'; whole output: $log)" "$advice"
  fi
}

# A compilation that sees LibTorch takes up to 1.5 GB.
parallel_jobs() {
  local by_memory=$(($(awk '/^MemAvailable/ {print $2}' /proc/meminfo) / 1500000)) cores
  cores=$(nproc)
  if ((by_memory < 1)); then by_memory=1; fi
  echo $((by_memory < cores ? by_memory : cores))
}
