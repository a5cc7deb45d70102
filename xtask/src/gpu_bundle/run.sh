#!/bin/sh
# Runs every GPU test of this archive: one line per test, a summary, and results.json in the working folder.
# usage: run [--require-gpu] [NAME...]    NAME: only tests whose name contains it; a skip is a failure with --require-gpu.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
KD_KERNELS=${KD_KERNELS:-$here}
KD_GPU_RESULTS=$(mktemp)
log=$(mktemp)
all=$(mktemp)
trap 'rm -f "$KD_GPU_RESULTS" "$log" "$all"' EXIT
if [ "$1" = --require-gpu ]; then
  KD_REQUIRE_GPU=1
  export KD_REQUIRE_GPU
  shift
fi
export KD_KERNELS KD_GPU_RESULTS

broken=0
for test in "$here"/tests/*; do
  [ -x "$test" ] || continue
  name=$(basename "$test")
  "$test" --test-threads=1 "$@" >"$log" 2>&1
  code=$?
  # What a test printed before its result stands between "test NAME ..." and "ok"; each kind of line is taken by itself.
  grep -v '^$' "$log" | grep -v '^running ' | sed "s/^/$name: /"
  grep -v '^$' "$log" | sed "s/^/$name: /" >>"$all"
  # 101: a test failed, and its line says so. Anything else is the end of the whole program.
  if [ "$code" -ne 0 ] && [ "$code" -ne 101 ]; then
    echo "$name: ended with code $code"
    broken=$((broken + 1))
  fi
done

ok=$(grep -c -E '(^|[^a-z])ok$' "$all")
failed=$(grep -c -E '(^|[^A-Z])FAILED$' "$all")
skipped=$(grep -c 'skipped GPU test ' "$all")
passed=$((ok - skipped))
failed=$((failed + broken))
{
  printf '{"passed":%d,"failed":%d,"skipped":%d,"measurements":[' "$passed" "$failed" "$skipped"
  paste -s -d, "$KD_GPU_RESULTS"
  printf ']}\n'
} >results.json
echo "$passed passed, $failed failed, $skipped skipped; measurements in results.json"
[ "$failed" -eq 0 ] && [ "$((passed + skipped))" -gt 0 ]
