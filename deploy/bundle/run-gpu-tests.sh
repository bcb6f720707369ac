#!/usr/bin/env bash
# Runs the tests of this bundle on the machine that it was unpacked on.
#
# usage: run-gpu-tests.sh [OPTION...]
#   --backend cpu|cuda   daemons run on this backend, and it must work; default: cpu, and cuda where there is a GPU
#   --filter REGEX       only test programs whose names match, and the smoke tests; --list shows the names
#   --quick              unit tests and smoke tests only
#   --jobs N             test programs at a time; default: a quarter of the processors, at least 2
#   --out FOLDER         for the logs; default: ./kernd-test-logs
#   --list               print the names of the test programs and end
#
# On a GPU the small cases of its tests also run under compute-sanitizer (memcheck, racecheck, synccheck, initcheck),
# where that is on the PATH or in /usr/local/cuda/bin. A smoke test starts the daemon and checks one attention call of
# kernctl against the expected answer. Integration tests run once for each backend. What cannot run here says SKIPPED and
# why. The last line is "N passed, N failed, N skipped": test cases, not programs. Exit code: 0 when some passed and none
# failed, 1 otherwise, 2 for bad arguments. Needs bash, coreutils, grep, sed and awk.
set -uo pipefail
# shellcheck source=deploy/bundle/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

fail() {
  printf 'run-gpu-tests.sh: error: %s\n' "$1" >&2
  exit "${2:-1}"
}

backends=(cpu cuda) wanted='' filter=. quick='' list='' out=kernd-test-logs
jobs=$(($(nproc) >= 8 ? $(nproc) / 4 : 2))
while (($# > 0)); do
  case $1 in --backend | --filter | --jobs | --out) (($# > 1)) || fail "$1 needs a value" 2 ;; esac
  case $1 in
    --backend)
      [[ $2 == cpu || $2 == cuda ]] || fail "--backend $2: must be cpu or cuda" 2
      wanted=$2 backends=("$2")
      ;;
    --filter) filter=$2 ;;
    --jobs)
      [[ $2 =~ ^[1-9][0-9]*$ ]] || fail "--jobs $2: must be a number from 1 on" 2
      jobs=$2
      ;;
    --out) out=$2 ;;
    --quick) quick=1 ;;
    --list) list=1 ;;
    --help | -h)
      sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit
      ;;
    *) fail "no option is named $1; --help lists them" 2 ;;
  esac
  case $1 in --backend | --filter | --jobs | --out) shift ;; esac
  shift
done

# --- one test ---------------------------------------------------------------------------------------------------------

# note NAME PASSED FAILED SKIPPED START [REMARK]: keeps the counts for the sum, prints the test's line.
note() {
  local verdict=PASSED counts="$2 passed"
  (($2 > 0)) || verdict=SKIPPED
  (($3 == 0)) || verdict=FAILED counts+=", $3 failed"
  (($4 == 0)) || counts+=", $4 skipped"
  echo "$2 $3 $4" >"$scratch/$1.counts"
  awk -v from="$5" -v to="$EPOCHREALTIME" -v verdict="$verdict" -v name="$1" -v counts="$counts${6:+ ($6)}" \
    'BEGIN { printf "%-8s %-36s %6.1f s  %s\n", verdict, name, to - from, counts }'
}

last_lines() { tail -n 30 "$1" | sed 's/^/    | /'; }

# Each skipped case with its reason, from GoogleTest's output.
skipped_cases() {
  awk 'waiting { why = $0; waiting = 0 }
       /: Skipped$/ { waiting = 1 }
       /^\[  SKIPPED \] .*\(/ { print "    SKIPPED " $4 ": " why }' "$1"
}

# run_program NAME TIMEOUT [VARIABLE=VALUE...] PROGRAM. Prints its lines in one piece: others run beside it.
run_program() {
  local name=$1 limit=$2 log=$out/$1.log json=$scratch/$1.json start=$EPOCHREALTIME code=0 remark='' lines pid
  shift 2
  timeout -k 5 "$limit" env GTEST_OUTPUT="json:$json" GTEST_COLOR=no "${@:1:$#-1}" "$KERND_BUNDLE/bin/${!#}" \
    >"$log" 2>&1 </dev/null &
  pid=$!
  trap 'kill "$pid"' TERM
  wait "$pid" || code=$?
  # The sums stand first in the report, two spaces in; there is none for skipped cases.
  local all failed off skipped
  read -r all failed off skipped < <(awk -F '[:,] *' '
    /^  "tests":/ { all = $2 } /^  "failures":/ { failed = $2 } /^  "disabled":/ { off = $2 }
    /"result": "SKIPPED"/ { skipped++ } END { print all + 0, failed + 0, off + 0, skipped + 0 }' "$json" 2>/dev/null)
  : "${all:=0}" "${failed:=0}" "${off:=0}" "${skipped:=0}"
  if ((code != 0 && failed == 0)); then  # it crashed, hung, or failed outside of its cases
    remark="ended with code $code"
    ((code != 124 && code != 137)) || remark="stopped after $limit s"
    failed=1 all=$((all + 1))
  fi
  lines=$(note "$name" $((all - failed - off - skipped)) "$failed" "$skipped" "$start" "$remark")
  ((skipped == 0)) || lines+=$'\n'$(skipped_cases "$log")
  ((failed == 0)) || lines+=$'\n'$(last_lines "$log")
  printf '%s\n' "$lines"
}

# smoke BACKEND FOLDER DATA: the daemon, one call of kernctl, a clean end. Code 4: this machine or build has no such backend.
smoke() {
  local ports=$2/ports data=$3 pid endpoint code=0
  kernd --backend "$1" --listen 127.0.0.1:0 --http-listen off --port-file "$ports" &
  pid=$!
  until [[ -s $ports ]]; do
    if ! kill -0 "$pid" 2>/dev/null; then
      wait "$pid"
      return
    fi
    sleep 0.02
  done
  endpoint=$(sed -n 's/^grpc=//p' "$ports")
  kernctl --endpoint "$endpoint" health --wait 60s &&
    kernctl --endpoint "$endpoint" gpu-info &&
    kernctl --endpoint "$endpoint" attention --q "$data/q.npy" --k "$data/k.npy" --v "$data/v.npy" \
      --expect "$data/expected_o.npy" || code=1
  kill -TERM "$pid"
  wait "$pid" && return "$code"
}

# run_smoke BACKEND. Fails where the backend is not there.
run_smoke() {
  local name=smoke@$1 log=$out/smoke@$1.log start=$EPOCHREALTIME folder=$scratch/smoke@$1 code=0
  local data=$KERND_BUNDLE/tests/data/minilm
  mkdir "$folder"
  timeout -k 5 120 bash -c "$(declare -f smoke); smoke $1 '$folder' '$data'" >"$log" 2>&1 </dev/null || code=$?
  if ((code == 4)) && [[ -z $wanted && (-z $gpus || $version == *"CUDA none"*) ]]; then
    note "$name" 0 0 1 "$start"
    echo "    SKIPPED $name, and the integration tests on $1: $(tail -n 1 "$log" | sed 's/^[^ ]* error //')"
  elif ((code == 0)); then
    note "$name" 1 0 0 "$start"
  else
    note "$name" 0 1 0 "$start" "ended with code $code"
    last_lines "$log"
  fi
  ((code != 4))
}

# --- compute-sanitizer ------------------------------------------------------------------------------------------------

# Of a GPU test, the cases that a tool a hundred times slower gets through; of each kind of kernel at least one.
declare -A small=(
  [attention_gpu_test]='*EmptyRows:*OnesGiveOnes:*ManyHeadsOfOneKeyHead'
  [matmul_gpu_test]='*EmptyResultsLaunchNothing:*OperandsThatDoNotCountAreNotRead:*IntegerEpilogue*:*BatchOfSixDimensions'
  [slices_gpu_test]='MatmulSlices.*:ScanGpu.*'
)
small[matmul_gpu_test]+=':*PaddedLines/f16_nt:*PaddedLines/bf16_nt:*PaddedLines/f32_nt:*PaddedLines/i8_nt'
# These as well, but under racecheck, which takes minutes for them.
declare -A longer=([attention_gpu_test]='*RepetitionDoesNotShow:*TensorCoreProblems/0:*PositionalProblems/0')

# sanitized NAME PROGRAM: lines of planned() for each tool.
sanitized() {
  local tool variables
  [[ -n $sanitizer && -n ${small[$1]:-} ]] || return 0
  for tool in memcheck racecheck synccheck initcheck; do
    variables="GTEST_FILTER=${small[$1]}"
    [[ $tool == racecheck ]] || variables+=${longer[$1]:+:${longer[$1]}}
    # Buffers of exactly their size: then the first byte past one is seen.
    [[ $tool != memcheck ]] || variables+=' KERND_EXACT_BUFFERS=1'
    # It does not follow arrivals at an mbarrier, by which warps of these kernels hand jobs on in shared memory.
    [[ $tool != racecheck ]] || variables+=' KERND_WITHOUT_ROWS=wgmma'
    # It does not see what cuBLASLt writes through the copy engine.
    [[ $tool != initcheck ]] || variables+=' KERND_ROWS=simt'
    echo "$tool@$1 600 $variables $sanitizer --tool $tool --error-exitcode 99 $2"
  done
}

# --- all of them ------------------------------------------------------------------------------------------------------

# The lines of tests/list.txt, NAME LABEL TIMEOUT [VARIABLE=VALUE...] PROGRAM, as NAME TIMEOUT ... PROGRAM: integration
# tests once for each backend given; those of the GPU, which take longest, first, where there is one in four parts.
readonly parts=4
planned() {
  local name label limit rest backend part
  while read -r name label limit rest; do
    [[ $label == unit || -z $quick ]] || continue
    case $label in
      integration) for backend in "$@"; do echo "$name@$backend $limit KERND_TEST_BACKEND=$backend $rest"; done ;;
      gpu)
        [[ $wanted != cpu ]] || continue
        if [[ -z $gpus ]]; then
          echo "$name $limit $rest"
          continue
        fi
        for ((part = 0; part < parts; ++part)); do
          echo "$name.$((part + 1))of$parts $limit GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part $rest"
        done
        sanitized "$name" "${rest##* }"
        ;;
      *) echo "$name $limit $rest" ;;
    esac
  done < <(sed -n '/^[^ ]* gpu /p' "$KERND_BUNDLE/tests/list.txt" && sed '/^[^ ]* gpu /d' "$KERND_BUNDLE/tests/list.txt")
}

selected() { while read -r line; do [[ ! ${line%% *} =~ $filter ]] || echo "$line"; done; }

gpus=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | paste -sd ';') || gpus=''
sanitizer=''
[[ -z $gpus ]] || sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer) || sanitizer=''

if [[ -n $list ]]; then
  planned "${backends[@]}" | selected | sed 's/ .*//'
  exit
fi

mkdir -p "$out" || fail "cannot write logs to $out; name another folder with --out"
out=$(cd "$out" && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/kernd-tests.XXXXXX") || fail "cannot write to ${TMPDIR:-/tmp}; set TMPDIR"
trap 'for pid in $(jobs -rp); do kill "$pid"; done; rm -rf "$scratch"' EXIT
version=$(kernd --version 2>&1) || fail "kernd does not start here: $version"
echo "$version"
echo "$(nproc) processors; GPU: ${gpus:-none}; $jobs programs at a time; logs in $out"

there=()
for backend in "${backends[@]}"; do
  ! run_smoke "$backend" || there+=("$backend")
done
if [[ -n $gpus && $wanted != cpu && -z $quick && -z $sanitizer ]]; then
  note compute-sanitizer 0 0 1 "$EPOCHREALTIME"
  echo '    SKIPPED memcheck, racecheck, synccheck, initcheck: there is no compute-sanitizer here'
fi
mapfile -t lines < <(planned "${there[@]}" | selected)
for line in "${lines[@]}"; do
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
  # shellcheck disable=SC2086  # the words of the line
  run_program $line &
done
wait

awk '{ passed += $1; failed += $2; skipped += $3 }
     END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 || passed == 0 }' \
  /dev/null "$scratch"/*.counts
