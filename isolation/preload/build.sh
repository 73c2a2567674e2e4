#!/bin/sh
# build.sh OUT [FLAG OR SOURCE ...]: compile the library; the one place that has its flags.
# Tests add theirs. The same sources and compiler give the same bytes, wherever they lie.
set -eu
case "$(uname -s) $(uname -m)" in
"Linux x86_64") ;;
*) echo "missing: Linux on x86-64, for which alone the preload library is written" >&2; exit 1 ;;
esac
compiler=${CC:-gcc}
command -v "$compiler" >/dev/null || {
    echo "missing: $compiler; cure: apt-get install gcc libc6-dev" >&2
    exit 1
}
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
mkdir -p "$(dirname "$out")"
# libpthread and libdl by name, because under a glibc before 2.34 they have what libc has
# today. Without fortified functions, whose symbols are newer than glibc 2.17. Symbolic in
# functions, because a program may have functions or variables of the driver's names.
"$compiler" -shared -fPIC -O2 -std=gnu11 -Wall -Wextra -fvisibility=hidden -pthread \
    -U_FORTIFY_SOURCE "-ffile-prefix-map=$here=." "-I$here" -o "$out.unfinished" \
    "$here"/*.c "$@" \
    -Wl,-soname,libvcuda.so.1,-z,defs,--build-id=none,--strip-all,-Bsymbolic-functions \
    -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2
# Whole or not at all, because programs may have the one before loaded.
chmod 644 "$out.unfinished"
mv "$out.unfinished" "$out"
