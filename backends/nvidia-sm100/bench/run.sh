#!/usr/bin/env bash
# Checks the NVIDIA backend on this machine and measures it: everything that needs a GPU, in one call.
#
#   ./run.sh [FOLDER]      results go to FOLDER, else to results/ beside this file
#
# The exit code is 0 only if every check passes. Bars that are missed are reported, and are no failure.
# WHEELS names a folder with wheels of the peers (see peers.py); ROWS the rows of verify; BACKEND another backend, and BENCH
# arguments of `deepinfer bench ops`, for a trial on a machine without a GPU: BACKEND=cpu BENCH="--scale 64 --rotate 0".
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/results}
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
backend=${BACKEND:-nvidia}
export DEEPINFER_PLUGIN_PATH=$here/plugins DEEPINFER_ACCELERATOR=$backend
# Faults leave their dumps with the results.
export DEEPINFER_FLIGHT_RECORDER=$out
deepinfer=$here/deepinfer
failed=0
rows=()

# check NAME COMMAND...: runs it, keeps what it says, and remembers its last line.
check() {
    local name=$1 begun=$SECONDS verdict=passed
    shift
    echo "$name: $*" >&2
    if ! "$@" >"$out/$name.txt" 2>"$out/$name.err"; then
        verdict=FAILED
        failed=1
    fi
    local last
    last=$(grep -v '^[[:space:]]*$' "$out/$name.txt" | tail -n 1)
    [ "$verdict" = passed ] || last=$(cat "$out/$name.txt" "$out/$name.err" | grep -v '^[[:space:]]*$' | tail -n 1)
    rows+=("$(printf '%-10s %-8s %4d s  %s' "$name" "$verdict" $((SECONDS - begun)) "${last:0:150}")")
}

# note NAME WORDS: something that is no check.
note() {
    rows+=("$(printf '%-10s %-8s         %s' "$1" - "$2")")
}

# unpack FILE: what travels compressed.
unpack() {
    [ -e "$1" ] || gzip -dc "$1.gz" >"$1"
}

# The stored tokens and logits of the miniature. The test finds its files where cargo says that the package lies.
miniature() {
    unpack "$here/models/deepseek-v41-mini/model.safetensors" || return 1
    CARGO_MANIFEST_DIR=$here/tests "$here/miniature" --nocapture --test-threads 1
}

# Two layers of the released dimensions against the processor: what comes out, and one call of an op in SHADOW by itself.
slice() {
    CARGO_MANIFEST_DIR=$here/tests DEEPINFER_LAYERS="validate:shadow=1/${SHADOW:-16},on=error" \
        "$here/released_slice" --ignored --nocapture
}

# Cases whose bar is missed.
missed() {
    grep ' missed$' "$out/bench.txt" | sed 's/^ */  /' || true
}

# Attention over lists of any width, every call judged.
widths() {
    CARGO_MANIFEST_DIR=$here/tests DEEPINFER_LAYERS="validate:shadow=1/1,on=error" "$here/attention_widths" --nocapture
}

begun=$SECONDS
unpack "$deepinfer" && chmod +x "$deepinfer"
check doctor "$deepinfer" doctor
check parity "$deepinfer" parity --backend "$backend" --report "$out/parity.json" --html "$out/parity.html"
check miniature miniature
check slice slice
check widths widths
check verify "$deepinfer" verify --accelerator "$backend" --rows "${ROWS:-100000}"
check launches "$deepinfer" bench latency --accelerator "$backend" --input-len 16 --output-len 64
# shellcheck disable=SC2086
check bench "$deepinfer" bench ops --backend "$backend" --json "$out/ops.json" --svg "$out/ops.svg" ${BENCH:-}
if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>"$out/peers.err"; then
    if python3 "$here/peers.py" --ours "$out/ops.json" --json "$out/peers.json" ${WHEELS:+--wheels "$WHEELS"} \
        >"$out/peers.txt" 2>"$out/peers.err"; then
        note peers "$(grep -c '[0-9]$' "$out/peers.txt") ratios in peers.txt"
    else
        note peers "did not run: $(tail -n 1 "$out/peers.err")"
    fi
else
    note peers "not run: there is no python3 with torch and a GPU"
fi

{
    echo "deepinfer on $(uname -n), $(date -u +%Y-%m-%dT%H:%MZ), backend $backend, $((SECONDS - begun)) s"
    # How many launches a decode step takes, and what was measured where.
    [ -e "$out/launches.txt" ] && sed -n '1p' "$out/launches.txt"
    [ -e "$out/bench.txt" ] && sed -n '1,2p' "$out/bench.txt"
    [ -e "$out/peers.txt" ] && cat "$out/peers.txt"
    if [ -n "$(missed)" ]; then
        echo "bars that are missed:"
        missed
    fi
    printf '%-10s %-8s %6s  %s\n' check result time "what it says"
    printf '%s\n' "${rows[@]}"
} | tee "$out/summary.txt"
exit "$failed"
