#!/usr/bin/env bash
# Cross-compiles for 64-bit Arm and runs the result under qemu-aarch64: the unit tests, the kernels'
# among them, the conformance tests of operations, and jobs of two ranks on one host and on two.
#
#     test/soak/arm64.sh [--jobs N]
#
#   --jobs N        how many compilers, and then tests, run at a time: as many as there are cores
#                   by default
#   RUEDA_SYSROOT   a sysroot that third_party/sysroot.sh has made. Default: build/sysroot, which is
#                   made where there is none
#
# Needs Debian's g++-aarch64-linux-gnu and qemu-user. Programs that start programs need the kernel's
# binfmt_misc: as root this registers qemu there while it runs, unless it is registered.
#
# qemu runs the instructions of Arm, but in the memory order of the machine that it runs on, and its
# times say nothing. Exit status: 0 when nothing failed, 77 when it could not begin.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

say() { printf 'arm64: %s\n' "$*"; }
skip() {
  say "skipped: $*"
  exit 77
}

jobs=$(nproc)
case "${1:-}" in
  "") ;;
  --jobs) jobs=${2:?--jobs takes a number} ;;
  -h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
  *)
    say "unknown option $1; there is --jobs" >&2
    exit 2
    ;;
esac

# What qemu 7.2 does otherwise than a kernel, by the cases that see it.
left_out=(
  'SharedMemory.IsNotInherited' 'qemu ignores madvise(MADV_DONTFORK)'
  'SharedMemory.NothingElseComesToItsPlaceInAChild' 'qemu ignores madvise(MADV_DONTFORK)'
  'Process.HasEndedIsSeenWithoutPidfdsToo' 'qemu has no seccomp'
  'Process.TellsHowAChildEnded' 'qemu keeps the last real-time signals to itself'
)
# Tests that compile nothing for Arm: scripts, and models in Promela.
no_programs='bench_report_test|configuration_test|gpu_script_test|models_test'
no_programs+='|prefix_test|sysroot_test'

# Beginning ------------------------------------------------------------------------------------

install="apt-get install --no-install-recommends g++-aarch64-linux-gnu qemu-user"
command -v aarch64-linux-gnu-g++ >/dev/null || skip "there is no aarch64-linux-gnu-g++: $install"
command -v qemu-aarch64 >/dev/null || skip "there is no qemu-aarch64: $install"
export RUEDA_SYSROOT=${RUEDA_SYSROOT:-$PWD/build/sysroot}
if [[ ! -d $RUEDA_SYSROOT/usr/include ]]; then
  third_party/sysroot.sh "$RUEDA_SYSROOT" || skip "there is no sysroot"
fi
export QEMU_LD_PREFIX=$RUEDA_SYSROOT

cmake --preset arm64 "-DRUEDA_SYSROOT=$RUEDA_SYSROOT" >/dev/null
build=$PWD/build/arm64
mapfile -t tests < <(ctest --test-dir "$build" -N -L '^unit$' -E "^($no_programs)\$" |
  sed -n 's/^ *Test *#[0-9]*: //p')
[[ ${#tests[@]} -gt 0 ]] || skip "$build has no tests"
# Some are another test's program with other arguments.
targets=(ruedarun hello cpp_snippets operations_test nccl_module_test)
for name in "${tests[@]}"; do
  ! ninja -C "$build" -t query "$name" >/dev/null 2>&1 || targets+=("$name")
done
cmake --build "$build" -j "$jobs" --target "${targets[@]}" >/dev/null ||
  { say "FAILED: the build; again: cmake --build $build"; exit 1; }
say "built; $(qemu-aarch64 --version | head -n 1)"

# Programs that start programs -----------------------------------------------------------------

formats=/proc/sys/fs/binfmt_misc
registered=""
mounted=""
work=$(mktemp -d)
# shellcheck disable=SC2317  # called by the trap
cleanup() {
  rm -r "$work"
  [[ -z $registered ]] || echo -1 >"$formats/rueda-arm64"
  [[ -z $mounted ]] || umount "$formats"
}
trap cleanup EXIT

runs_by_itself() { "$build/bin/rueda_knobs" >/dev/null 2>&1; }

register() {
  [[ $(id -u) == 0 ]] || return 1
  if [[ ! -e $formats/register ]]; then
    mount -t binfmt_misc binfmt_misc "$formats" 2>/dev/null || return 1
    mounted=1
  fi
  # An ELF file of 64 bits, little-endian, a program or library, for machine 0xb7.
  printf ':rueda-arm64:M::%s:%s:%s:FP' \
    '\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00' \
    '\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff' \
    "$(command -v qemu-aarch64)" >"$formats/register" || return 1
  registered=1
  runs_by_itself
}

binfmt=1
if ! runs_by_itself && ! register; then
  binfmt=""
  say "left out: death tests start programs, and binfmt_misc has no entry for arm64: run as root"
fi

# Running --------------------------------------------------------------------------------------

# A rank maps as much shared memory as the machine has, and qemu keeps 12 bytes for each KiB of it
# and gives none back: tests that start hundreds of ranks would take all memory.
ulimit -f $((512 << 10))
filter=""
for ((i = 0; i < ${#left_out[@]}; i += 2)); do
  filter+=":${left_out[i]}"
  say "left out: ${left_out[i]}: ${left_out[i + 1]}"
done
[[ -n $binfmt ]] || filter+=":*DeathTest.*"
say "left out: ${no_programs//|/, }: they run no program of Rueda's"
failed=0

GTEST_FILTER="-${filter#:}" ctest --test-dir "$build" -L '^unit$' -E "^($no_programs)\$" \
  -j "$jobs" --output-on-failure --no-tests=error || failed=1

try() {  # NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  if (cd "$work" && "$@") >"$work/log" 2>&1; then
    say "passed: $name, $((SECONDS - start)) s"
  else
    say "FAILED: $name"
    tail -n 60 "$work/log"
    failed=1
  fi
}

# qemu has no prctl(PR_SET_CHILD_SUBREAPER), by which ruedarun adopts what a rank leaves behind. It
# is told that it has.
subreaper=$work/subreaper.so
aarch64-linux-gnu-gcc --sysroot="$RUEDA_SYSROOT" -shared -fPIC -x c -o "$subreaper" - <<'C'
#include <stdarg.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
__attribute__((constructor)) static void NotForChildren(void) { unsetenv("LD_PRELOAD"); }
int prctl(int option, ...) {
  va_list list;
  va_start(list, option);
  unsigned long a[4];
  for (int i = 0; i < 4; ++i) a[i] = va_arg(list, unsigned long);
  va_end(list);
  if (option == PR_SET_CHILD_SUBREAPER) return 0;
  return (int)syscall(SYS_prctl, option, a[0], a[1], a[2], a[3]);
}
C
run=(qemu-aarch64 -E LD_PRELOAD="$subreaper" "$build/bin/ruedarun" -np 2 qemu-aarch64)
for program in hello cpp_snippets; do
  try "$program, two ranks on one host" "${run[@]}" "$build/bin/$program"
  for bytes in 4096 0; do  # by the plan, and by Gloo
    try "$program, two ranks on two hosts, RUEDA_INLINE_BYTES=$bytes" \
      env RUEDA_HOSTS_FAKE=2 RUEDA_INLINE_BYTES=$bytes "${run[@]}" "$build/bin/$program"
  done
done
try "operations_test, processes on one host and on two" qemu-aarch64 "$build/test/operations_test" \
  --gtest_filter='*/processes:*/processes_two_hosts'
# Larger programs crash in qemu then. Its /proc counts pages of 4 KiB still.
pages=(qemu-aarch64 -p 65536)
try "shared memory, pages of 64 KiB" "${pages[@]}" "$build/test/base_test" \
  --gtest_filter='SharedMemory.*-*.IsNotInherited:*InAChild'
try "segments and arenas, pages of 64 KiB" "${pages[@]}" "$build/test/host_test" \
  --gtest_filter='-Segment.MapsAreasOfTheSetsThatAreUsed'

((failed == 0)) && say "all passed"
exit "$failed"
