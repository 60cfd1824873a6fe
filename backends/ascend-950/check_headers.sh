#!/bin/sh
# Type-checks the kernels against the real Ascend C headers. A developer's check: it needs files that are not in this repository and
# must not be, and it is no part of CI. `--help` says what it needs and what its exit codes are.
#
# The device's intrinsics are nowhere to be had. The headers that call them give errors of their own, which are counted and not
# judged; what is judged is our own files: each call must find its declaration with the types that it is given. A control with two
# wrong calls shows that such errors are seen. The versions are printed, to be recorded with the result.
set -eu

help() {
  cat <<'HELP'
check_headers.sh: type-checks the kernels against the real Ascend C headers, with

  ASC_DEVKIT   the folder of an unpacked asc-devkit, with include/ and impl/: a public repository of CANN on gitcode.com
  ASC_TOOLS    the folder of an unpacked asc-tools, with cpudebug/include/ (the scalar types for a compiler of the host): another one
  CLANGXX      Clang 16 or newer, of any distribution; clang++ if it is not set

  ASC_DEVKIT=~/asc-devkit ASC_TOOLS=~/asc-tools backends/ascend-950/check_headers.sh

Exit codes: 0 no kernel has an error, 1 one has, or the check itself sees nothing, 2 a variable names no such folder or the
argument is unknown, 77 skipped: something that it needs is not there.
HELP
}
wrong() {
  echo "check_headers.sh: $*" >&2
  exit 2
}
skip() {
  echo "skipped, nothing was checked: $* (--help says more)" >&2
  exit 77
}

case ${1:-} in
  "") ;;
  -h | --help)
    help
    exit 0
    ;;
  *) wrong "there is no argument $1; --help is the only one" ;;
esac

# Where this file lies, also where a link names it.
self=$(readlink -f -- "$0")
here=$(CDPATH= cd -- "$(dirname -- "$self")" && pwd)
[ -d "$here/kernels" ] || wrong "there is no folder kernels beside $self"
# What is set is looked at before anything that is missing ends the check.
holds() { # variable, folder, file
  [ -z "$2" ] || [ -f "$2/$3" ] || wrong "$1 is \"$2\", where there is no $3: name the folder of the unpacked repository, or unset it"
}
holds ASC_DEVKIT "${ASC_DEVKIT:-}" include/kernel_operator.h
holds ASC_TOOLS "${ASC_TOOLS:-}" cpudebug/include/stub_def.h
[ -n "${ASC_DEVKIT:-}" ] || skip "ASC_DEVKIT is not set; it names an unpacked asc-devkit, the real headers"
[ -n "${ASC_TOOLS:-}" ] || skip "ASC_TOOLS is not set; it names an unpacked asc-tools, the scalar types for a compiler of the host"
clang=${CLANGXX:-clang++}
command -v "$clang" >/dev/null 2>&1 || skip "there is no compiler $clang; the headers need Clang 16 or newer, which CLANGXX names"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP
# The declarations of the intrinsics, which are missing.
mkdir "$scratch/stub"
: >"$scratch/stub/stub_fun.h"

check() { # source, log
  "$clang" -x c++ -std=c++17 -fsyntax-only -ferror-limit=0 -w \
    -D__NPU_ARCH__=3510 -DASCENDC_CPU_DEBUG=1 -D__CCE_KT_TEST__=1 -include cstdint \
    -I"$scratch/stub" -I"$here/kernels" -I"$ASC_TOOLS/cpudebug/include" \
    -I"$ASC_DEVKIT" -I"$ASC_DEVKIT/include" -I"$ASC_DEVKIT/include/basic_api" -I"$ASC_DEVKIT/include/utils" \
    -I"$ASC_DEVKIT/impl" -I"$ASC_DEVKIT/impl/basic_api" -I"$ASC_DEVKIT/impl/basic_api/dav_3510" \
    "$1" >"$2" 2>&1 && return
  # A compiler that ends otherwise than with errors has looked at nothing.
  grep -q ": \(fatal \)\{0,1\}error:" "$2" || broken "$1" "$2"
}
broken() { # source, log
  echo "$clang fails on $1 and tells no error:" >&2
  head -n 20 "$2" >&2
  exit 1
}
# Lines of errors in files whose path begins with a text, which is no pattern.
errors_in() { # prefix, log
  prefix=$1 awk 'index($0, ENVIRON["prefix"]) == 1 && substr($0, length(ENVIRON["prefix"]) + 1) ~ /^[^:]*:[0-9]+:[0-9]+: (fatal )?error:/' "$2"
}

"$clang" --version | head -n 1
for kit in "$ASC_DEVKIT" "$ASC_TOOLS"; do
  echo "$(basename "$kit") $(git -C "$kit" rev-parse --short HEAD 2>/dev/null || echo "of unknown version")"
done

cat >"$scratch/control.cpp" <<'CONTROL'
#include "kernel_operator.h"
extern "C" __global__ __aicore__ void control(GM_ADDR x) {
  AscendC::TPipe pipe;
  AscendC::TBuf<AscendC::TPosition::VECCALC> buffer;
  pipe.InitBuffer(buffer, 256);
  AscendC::LocalTensor<float> a = buffer.Get<float>();
  AscendC::Add(a, a, x, 64);
  AscendC::DataCopyNowhere(a, x, 64);
}
CONTROL
check "$scratch/control.cpp" "$scratch/control.log"
seen=$(errors_in "$scratch/control.cpp" "$scratch/control.log" | wc -l)
if [ "$seen" -lt 2 ]; then
  echo "the two wrong calls of the control give $seen errors: this check sees nothing, and says nothing of the kernels" >&2
  head -n 20 "$scratch/control.log"
  exit 1
fi
echo "control: $seen errors, as it should"

failed=0
for source in "$here"/kernels/*.cpp; do
  [ -f "$source" ] || wrong "there is no kernel in $here/kernels"
  check "$source" "$scratch/log"
  ours=$(errors_in "$here/kernels/" "$scratch/log" | wc -l)
  all=$(grep -c " error:" "$scratch/log" || true)
  echo "$(basename "$source"): $ours errors in our files, $((all - ours)) in the headers"
  if [ "$ours" -gt 0 ]; then
    failed=1
    errors_in "$here/kernels/" "$scratch/log" | head -n 40
  fi
done
exit $failed
