#!/bin/sh
# Type-checks the kernels against the real Ascend C headers. A developer's check: it needs files that are not in this repository and
# must not be, and it is no part of CI.
#
#   ASC_DEVKIT   an unpacked asc-devkit: its include/ and impl/
#   ASC_TOOLS    an unpacked asc-tools: cpudebug/include/ has the scalar types for a host compiler
#   CLANGXX      Clang 16 or newer; clang++ if not set
#
# The device's intrinsics are nowhere to be had. The headers that call them give errors of their own, which are counted and not
# judged; what is judged is our own files: each call must find its declaration with the types that it is given. A control with two
# wrong calls shows that such errors are seen. The versions are printed, to be recorded with the result.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${ASC_DEVKIT:-}" ]; then
  echo "skipped: no real header; set ASC_DEVKIT to an unpacked asc-devkit and ASC_TOOLS to an unpacked asc-tools"
  exit 0
fi
clang=${CLANGXX:-clang++}
if ! command -v "$clang" >/dev/null 2>&1; then
  echo "skipped: no $clang; the headers need Clang (CLANGXX names it)"
  exit 0
fi
for file in "$ASC_DEVKIT/include/kernel_operator.h" "${ASC_TOOLS:?ASC_TOOLS is not set}/cpudebug/include/stub_def.h"; do
  [ -f "$file" ] || { echo "not found: $file"; exit 1; }
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# The declarations of the intrinsics, which are missing.
mkdir "$scratch/stub"
: >"$scratch/stub/stub_fun.h"

check() { # source, log
  "$clang" -x c++ -std=c++17 -fsyntax-only -ferror-limit=0 -w \
    -D__NPU_ARCH__=3510 -DASCENDC_CPU_DEBUG=1 -D__CCE_KT_TEST__=1 -include cstdint \
    -I"$scratch/stub" -I"$here/kernels" -I"$ASC_TOOLS/cpudebug/include" \
    -I"$ASC_DEVKIT" -I"$ASC_DEVKIT/include" -I"$ASC_DEVKIT/include/basic_api" -I"$ASC_DEVKIT/include/utils" \
    -I"$ASC_DEVKIT/impl" -I"$ASC_DEVKIT/impl/basic_api" -I"$ASC_DEVKIT/impl/basic_api/dav_3510" \
    "$1" >"$2" 2>&1 || true
}
errors_in() { # prefix, log
  grep -c "^$1[^:]*:[0-9]*:[0-9]*: \(fatal \)\{0,1\}error:" "$2" || true
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
seen=$(errors_in "$scratch/control.cpp" "$scratch/control.log")
if [ "$seen" -lt 2 ]; then
  echo "the control's two wrong calls give $seen errors: this check sees nothing"
  head -n 20 "$scratch/control.log"
  exit 1
fi
echo "control: $seen errors, as it should"

failed=0
for source in "$here"/kernels/*.cpp; do
  check "$source" "$scratch/log"
  ours=$(errors_in "$here/kernels/" "$scratch/log")
  all=$(grep -c " error:" "$scratch/log" || true)
  echo "$(basename "$source"): $ours errors in our files, $((all - ours)) in the headers"
  if [ "$ours" -gt 0 ]; then
    failed=1
    grep -A 4 "^$here/kernels/.*error:" "$scratch/log" | head -n 40
  fi
done
exit $failed
