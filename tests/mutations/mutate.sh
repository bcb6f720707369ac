#!/usr/bin/env bash
# Breaks the code on purpose, one tests/mutations/NAME.patch at a time, and sees the tests that the patch names turn red.
# Called by `./dev mutate [NAME]`: the patch of that name, or all whose names contain it; README.md says what a patch
# looks like. The tree itself is never touched: all happens in a copy under build/mutate, with a build folder of its own.
# Exit code: 0 when every mutation was killed, 2 when none was tried.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# Without CUDA, with or without a toolkit on the machine: no test here needs a device.
readonly preset=cpu
readonly source=$PWD copy=$PWD/build/mutate/tree log=$PWD/build/mutate/log patches=$PWD/tests/mutations
mkdir -p "$copy"
exec 9>"$source/build/mutate/lock"
flock -n 9 || { echo "mutate: another run is under way in $source/build/mutate" >&2 && exit 2; }

if [[ -f $patches/${1:-}.patch ]]; then
  chosen=("$1")
else
  mapfile -t chosen < <(cd "$patches" && compgen -G "*${1:-}*.patch" | sed 's/\.patch$//')
fi
((${#chosen[@]} > 0)) || { echo "mutate: no mutation matches '${1:-}'" >&2 && exit 2; }

header() { sed -n "s/^# $2: //p;/^diff /q" "$patches/$1.patch" | head -n 1; }
# Those that build the same things come one after another.
mapfile -t chosen < <(for name in "${chosen[@]}"; do echo "$(header "$name" test) $name"; done | sort | sed 's/.* //')

# --- the copy ---------------------------------------------------------------------------------------------------------

# Only what differs is written, so that little is built again; what is left of an interrupted run goes, too.
sync_copy() {
  local file
  git ls-files -co --exclude-standard --deduplicate | while read -r file; do
    [[ ! -f $file ]] || echo "$file"
  done | sort >build/mutate/files
  (cd "$copy" && find . -path ./build -prune -o -type f -print | sed 's|^\./||' | sort) |
    comm -13 build/mutate/files - | while read -r file; do rm "$copy/$file"; done
  while read -r file; do
    cmp -s "$file" "$copy/$file" || { mkdir -p "$copy/$(dirname "$file")" && cp "$file" "$copy/$file"; }
  done <build/mutate/files
}

# Ends what a test has left running: a test that ran out of time, and its daemons.
reap() {
  local exe
  for exe in /proc/[0-9]*/exe; do
    [[ $(readlink "$exe" 2>/dev/null) != "$copy"/build/* ]] || kill -KILL "$(basename "$(dirname "$exe")")" 2>/dev/null || true
  done
}
trap reap EXIT
trap 'exit 130' INT TERM

# --- building and testing ---------------------------------------------------------------------------------------------

tests_of() { ctest --preset "$preset" -N -R "$1" | sed -n 's/^ *Test *#[0-9]*: //p'; }

# The programs of the tests that match the expression; tests that are scripts have none.
build_tests() {
  local test
  local -a targets=()
  while read -r test; do
    ! ninja -C "build/$preset" -t query "$test" >/dev/null 2>&1 || targets+=("$test")
  done < <(tests_of "$1")
  ((${#targets[@]} == 0)) || cmake --build --preset "$preset" --target "${targets[@]}"
}

# run_tests EXPRESSION SECONDS: 0 green, 124 out of time, else red. The first failure is enough.
run_tests() {
  local code=0
  GTEST_FAIL_FAST=1 timeout --kill-after=5 "$2" ctest --preset "$preset" -R "$1" --stop-on-failure || code=$?
  reap
  return "$code"
}

clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

sync_copy
cd "$copy"
# Without it git apply would take the copy for a folder of the repository around it; without CCACHE_BASEDIR, every copy
# would be compiled from nothing.
export GIT_CEILING_DIRECTORIES=$source/build/mutate CCACHE_BASEDIR=$copy

all=$(for name in "${chosen[@]}"; do header "$name" test; done | sort -u | paste -sd '|')
echo "Building and running without a mutation: $all (log: $log)"
if ! { cmake --preset "$preset" && build_tests "$all" && run_tests "$all" 1800; } >"$log" 2>&1; then
  echo "mutate: the unchanged tree does not pass, see $log" >&2
  exit 1
fi
# What each test took, in whole seconds.
declare -A took=()
while read -r test seconds; do took[$test]=$seconds; done < <(
  sed -nE 's|^ *[0-9]+/[0-9]+ Test +#[0-9]+: ([^ ]+) .* ([0-9]+)\.[0-9]+ sec$|\1 \2|p' "$log"
)

# What may pass for a slow machine must not pass for a mutant that hangs.
limit_of() {
  local test limit=30
  while read -r test; do limit=$((limit + 5 * ${took[$test]:-30})); done < <(tests_of "$1")
  echo "$limit"
}

# --- the mutations ----------------------------------------------------------------------------------------------------

# Sets `verdict` for the patch NAME.
mutate() {
  local test code=0
  test=$(header "$1" test)
  if [[ -z $test || -z $(header "$1" layer) ]]; then
    verdict='BROKEN: its header names no test or no layer'
  elif [[ -z $(tests_of "$test") ]]; then
    verdict="BROKEN: no test is named $test"
  elif ! git apply "$patches/$1.patch"; then
    verdict='BROKEN: applies no more'
  else
    if ! build_tests "$test"; then
      verdict='BROKEN: does not build'
    else
      run_tests "$test" "$(limit_of "$test")" || code=$?
      case $code in
        0) verdict="SURVIVED: $test stays green" ;;
        124 | 137) verdict='killed by its time running out' ;;
        *) verdict='killed' ;;
      esac
    fi
    git apply -R "$patches/$1.patch"
  fi >>"$log" 2>&1
}

started=$SECONDS
killed=0 survived=0 broken=0
table=()
for name in "${chosen[@]}"; do
  echo "=== $name" >>"$log"
  before=$SECONDS
  mutate "$name"
  case $verdict in
    killed*) killed=$((killed + 1)) ;;
    SURVIVED*) survived=$((survived + 1)) ;;
    *) broken=$((broken + 1)) ;;
  esac
  done=$((killed + survived + broken)) elapsed=$((SECONDS - started))
  printf '[%2d/%d] %-45s %-32s elapsed %s, about %s left\n' "$done" "${#chosen[@]}" "$name" "$verdict" \
    "$(clock "$elapsed")" "$(clock $((elapsed * (${#chosen[@]} - done) / done)))"
  table+=("$(printf '%-18s %-45s %4d s  %s' "$(header "$name" layer)" "$name" $((SECONDS - before)) "$verdict")")
done

echo
printf '%s\n' "${table[@]}" | sort
echo "$killed killed, $survived survived, $broken failed to apply or build"
((survived + broken == 0))
