#!/bin/sh
# Tests the NEON path on any Linux machine: builds the library for 64-bit ARM and runs the C tests,
# the example and the fuzzer under QEMU. Prints "ok" last. Needs two Debian packages:
#   apt-get install g++-aarch64-linux-gnu qemu-user-static
set -eu
native=$(cd "$(dirname "$0")/.." && pwd)

need() {
    command -v "$1" >/dev/null || {
        echo "$1 is missing: apt-get install $2" >&2
        exit 1
    }
}
need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
need aarch64-linux-gnu-gcc g++-aarch64-linux-gnu
qemu=qemu-aarch64-static
command -v $qemu >/dev/null || qemu=qemu-aarch64
need $qemu qemu-user-static

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags="-O2 -Wall -Wextra -Werror -I$native/include"
cd "$work"
# shellcheck disable=SC2086
aarch64-linux-gnu-g++ -std=c++17 $flags -c "$native"/src/*.cpp
for program in tests/abi_test tests/metric_test tests/candidates_test examples/memory_search tests/fuzz; do
    name=$(basename $program)
    mkdir "$name"
    # shellcheck disable=SC2086
    aarch64-linux-gnu-gcc -std=c99 $flags -c "$native/$program.c" -o "$name/main.o"
    aarch64-linux-gnu-g++ -static ./*.o "$name/main.o" -o "$name/run"
    echo "== $name"
    $qemu "$name/run"
done
echo ok
