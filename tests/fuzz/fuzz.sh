#!/usr/bin/env bash
# Called by ./dev fuzz, which has built the preset fuzz.
#   fuzz.sh run SECONDS TARGET...   searches for SECONDS in all; a line for each target, one for all
#   fuzz.sh merge TARGET...         takes what was learned into the corpora, of at most 100 KiB each
# Exit code: 0 when nothing was found. What is found becomes crash-HASH, timeout-HASH, ... in the target's corpus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# KERND_FUZZ_BUILD: another build folder.
readonly build=${KERND_FUZZ_BUILD:-build/fuzz} corpora=tests/fuzz/corpus
readonly max_corpus_bytes=$((100 * 1024)) max_seed_bytes=4096
readonly learned_name='????????????????????????????????????????'  # a hash; what libFuzzer calls an input
export ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
mkdir -p "$build/logs"

# What was learned in earlier runs, and is not in the tree.
learned() { mkdir -p "$build/corpus/$1" && echo "$build/corpus/$1"; }
kept() { find "$corpora/$1" -type f ! -name README | wc -l; }

# The dictionary that tests/fuzz/CMakeLists.txt names for a target.
dictionary() {
  local name
  name=$(sed -n "s/^kernd_fuzz($1 DICT \([a-z]*\).*/\1/p" tests/fuzz/CMakeLists.txt)
  [[ -z $name ]] || echo "-dict=tests/fuzz/dict/$name.dict"
}

# search TARGET SECONDS: false where something was found.
search() {
  local target=$1 log=$build/logs/$1.log code=0 before
  local -a words
  mapfile -t words < <(dictionary "$1")
  before=$(kept "$target")
  "$build/bin/${target}_fuzz" --write-seeds "$(learned "$target")"
  "$build/bin/${target}_fuzz" -max_total_time="$2" -max_len=$max_seed_bytes -timeout=120 -report_slow_units=120 -rss_limit_mb=3072 \
    -print_final_stats=1 -artifact_prefix="$corpora/$target/" \
    "${words[@]}" "$(learned "$target")" "$corpora/$target" >"$log" 2>&1 || code=$?
  awk -v target="$target" -v code="$code" -v found=$(($(kept "$target") - before)) -v log_file="$log" '
    $1 == "stat::average_exec_per_sec:" { speed = $2 }
    $1 == "stat::number_of_executed_units:" { runs = $2 }
    $1 == "stat::new_units_added:" { added = $2 }
    { for (i = 2; i < NF; ++i) { if ($i == "cov:") cov = $(i + 1); if ($i == "corp:") corpus = $(i + 1) } }
    END {
      printf "  %-18s %10d runs %7d/s  coverage %5d  corpus %12s (%d new)  %s\n", target, runs, speed, cov, corpus,
             added, code == 0 ? "nothing found" : "FOUND " found ": " log_file
    }' "$log"
  return "$code"
}

merge() {
  local target=$1 fresh=$build/merged/$1 total=0 size file
  rm -rf "$fresh" && mkdir -p "$fresh"
  # What is run anyway, seeds and what once was a fault, is there already. Edges alone, not how often each was passed: a
  # quarter of the inputs.
  "$build/bin/${target}_fuzz" --write-seeds "$fresh"
  find "$corpora/$target" -type f ! -name "$learned_name" -exec cp -t "$fresh" {} +
  "$build/bin/${target}_fuzz" -set_cover_merge=1 -use_counters=0 -max_len=$max_seed_bytes "$fresh" "$corpora/$target" \
    "$(learned "$target")" >"$build/logs/merge-$target.log" 2>&1
  find "$fresh" -type f ! -name "$learned_name" -delete
  # Of the others the smallest, as many as fit.
  find "$corpora/$target" -type f -name "$learned_name" -delete
  while read -r size file; do
    ((total + size <= max_corpus_bytes)) || break
    total=$((total + size))
    cp "$fresh/$file" "$corpora/$target/$file"
  done < <(find "$fresh" -type f -printf '%s %f\n' | sort -n)
  printf '  %-18s %5d inputs, %6d bytes\n' "$target" "$(kept "$target")" "$total"
}

verb=$1
shift
if [[ $verb == merge ]]; then
  for target in "$@"; do merge "$target"; done
  exit 0
fi
seconds=$1
shift
each=$((seconds / $#))
((each > 0)) || each=1
echo "Fuzzing $# target(s), $each s each (logs: $build/logs)"
found=0
for target in "$@"; do
  search "$target" "$each" || found=$((found + 1))
done
((found == 0)) || { echo "fuzz: $found of $# targets FOUND something" && exit 1; }
echo "fuzz: $# targets, $((each * $#)) s: nothing found"
