#!/usr/bin/env bash
# Breaks the code on purpose, one tests/mutations/*NAME*.patch at a time, in a copy of the tree under build/mutate, and
# sees the tests that the patch names turn red. Called by `./dev mutate [NAME]`; README.md says what a patch looks like.
# Exit code: 0 when every mutation was killed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

tree=build/mutate/tree
log=$PWD/build/mutate/log
mapfile -t patches < <(compgen -G "$PWD/tests/mutations/*${1:-}*.patch")
((${#patches[@]} > 0)) || { echo "no mutation matches '${1:-}'" >&2 && exit 1; }

# Only what differs is written, so that little is built again.
mkdir -p "$tree"
git ls-files -co --exclude-standard --deduplicate | while read -r file; do
  if [[ ! -f $file ]] || cmp -s "$file" "$tree/$file"; then continue; fi
  mkdir -p "$tree/$(dirname "$file")"
  cp "$file" "$tree/$file"
done

# Builds the tests whose names match the expression and runs them. 0: green, 1: red, 2: not built or not found.
build_and_test() {
  local -a targets
  mapfile -t targets < <(ctest --preset default -N -R "$1" | sed -n 's/^ *Test *#[0-9]*: //p')
  ((${#targets[@]} > 0)) || return 2
  ninja -C build -t query "${targets[@]}" >/dev/null 2>&1 || targets=(all)
  cmake --build --preset default --target "${targets[@]}" || return 2
  ctest --preset default -R "$1" --timeout 60 --stop-on-failure || return 1
}

# Without this, git apply would take the copy for a folder of the repository around it.
export GIT_CEILING_DIRECTORIES=$PWD/build/mutate
cd "$tree"
all=$(sed -n 's/^# test: //p' "${patches[@]}" | sort -u | paste -sd '|')
echo "without a mutation: $all"
if ! { cmake --preset default && build_and_test "$all"; } >"$log" 2>&1; then
  echo "the unchanged tree does not pass, see $log" >&2
  exit 1
fi

alive=0
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch)
  test=$(sed -n 's/^# test: //p' "$patch" | head -n 1)
  code=3
  echo "=== $name" >>"$log"
  if [[ $test ]] && git apply "$patch" >>"$log" 2>&1; then
    code=0
    build_and_test "$test" >>"$log" 2>&1 || code=$?
    git apply -R "$patch"
  fi
  case $code in
    1) echo "killed    $name" ;;
    0) echo "SURVIVED  $name: $test stays green" ;;
    2) echo "BROKEN    $name: does not build, or no test is named $test" ;;
    *) echo "BROKEN    $name: applies no more, or names no test" ;;
  esac
  ((code == 1)) || alive=$((alive + 1))
done
echo "$((${#patches[@]} - alive)) of ${#patches[@]} mutations killed"
((alive == 0))
