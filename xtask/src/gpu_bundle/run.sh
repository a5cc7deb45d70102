#!/bin/sh
# Runs every GPU test of this archive: one line per test, a summary, and results.json in the working folder.
# usage: run [--require-gpu] [--residency ARCH] [--repository DIR] [NAME...]
#   --require-gpu      a skip is a failure
#   --residency ARCH   every check once more with as many CTAs on an SM as ARCH (sm_120) would hold
#   --repository DIR   also the tests of whole models and of the engine, which read the demo pair of a checkout
#   NAME               only tests whose name contains it
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
KD_KERNELS=${KD_KERNELS:-$here}
KD_GPU_RESULTS=$(mktemp)
log=$(mktemp)
all=$(mktemp)
trap 'rm -f "$KD_GPU_RESULTS" "$log" "$all"' EXIT
repository=
while :; do
  case $1 in
  --require-gpu)
    export KD_REQUIRE_GPU=1
    shift
    ;;
  --residency | --repository)
    [ $# -ge 2 ] || { echo "run: $1 needs a value" >&2; exit 2; }
    if [ "$1" = --residency ]; then export KD_RESIDENCY="$2"; else repository=$2; fi
    shift 2
    ;;
  -*)
    echo "run: there is no $1" >&2
    exit 2
    ;;
  *) break ;;
  esac
done
export KD_KERNELS KD_GPU_RESULTS

broken=0
if [ -n "$repository" ]; then
  export KD_REPOSITORY="$repository" KD_MODELS="$repository/models"
else
  echo "no tests of whole models without --repository"
fi
for test in "$here"/tests/* ${repository:+"$here"/model-tests/*}; do
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
