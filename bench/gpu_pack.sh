#!/bin/sh
# Packs what a GPU machine without a network needs for `python -m bench.gpu_report`: wheels of what
# it lacks beside torch and transformers, and FlashInfer with kernels that are compiled here.
#
#   bench/gpu_pack.sh [--max-mib N] [--limit-s S] [--without-jit] [DIR]     (DIR: .gpu)
#
# Fails if DIR takes more than N MiB (64). The kernels that are not compiled within S seconds (3600)
# are left out; a second run goes on where the first one stopped. Unless --without-jit is given, the
# pack has the sources from which FlashInfer compiles others there. Needs pip, nvcc, ninja and a C++
# compiler; PYTHON names an interpreter with torch and apache-tvm-ffi.
#
# There, in the root of this repository:    . bench/gpu_unpack.sh DIR SITE
set -eu

max_mib=64 limit_s=3600 jit=yes dir=.gpu
while [ $# -gt 0 ]; do
    case $1 in
        --max-mib) max_mib=$2; shift ;;
        --limit-s) limit_s=$2; shift ;;
        --without-jit) jit=no ;;
        -*) echo "unknown option $1" >&2; exit 2 ;;
        *) dir=$1 ;;
    esac
    shift
done
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$dir/work" "$dir/whl"
dir=$(cd "$dir" && pwd)
work=$dir/work

# What the imports of this repository need, found by trying them with nothing else there.
wheels="msgspec pyzmq starlette anyio uvicorn cachetools httpx2 httpcore2 truststore gguf llguidance>=1.9
        pytest-asyncio pytest-timeout apache-tvm-ffi"

fetch() {
    # Wheels of CPython 3.12 on x86-64; pip takes the names of platforms literally.
    platforms=
    for glibc in 2_34 2_31 2_28 2_27 2_24 2_17; do
        platforms="$platforms --platform manylinux_${glibc}_x86_64"
    done
    # shellcheck disable=SC2086
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp $platforms --platform manylinux2014_x86_64 -d "$@"
}

# shellcheck disable=SC2086
rm -f "$dir"/whl/*.whl
fetch "$dir/whl" $wheels
[ -d "$work/full/flashinfer" ] || {
    fetch "$work" flashinfer-python
    "$python" -m zipfile -e "$work"/flashinfer_python-*.whl "$work/full"
}

# Its import needs little; what this interpreter lacks of it is put beside it.
missing=
for pair in pynvml:nvidia-ml-py tqdm:tqdm requests:requests jinja2:jinja2 packaging:packaging \
    filelock:filelock einops:einops; do
    "$python" -c "import ${pair%%:*}" 2>/dev/null || missing="$missing ${pair##*:}"
done
# shellcheck disable=SC2086
[ -z "$missing" ] || "$python" -m pip install --quiet --no-deps --upgrade --target "$work/full" $missing

rm -rf "$work/aot"
status=0
(cd "$root" && PYTHONPATH="$work/full${PYTHONPATH:+:$PYTHONPATH}" "$python" -m bench.gpu_modules \
    --work "$work/jit" --out "$work/aot" --limit-s "$limit_s") || status=$?
mkdir -p "$work/aot"

rm -rf "$work/site"
mkdir -p "$work/site/flashinfer/data/csrc"
(cd "$work/full" && tar cf - --exclude=flashinfer/data --exclude=flashinfer/moe_ep \
    --exclude=__pycache__ flashinfer flashinfer_python-*.dist-info) |
    tar xf - -C "$work/site"
cp -r "$work/aot" "$work/site/flashinfer/data/aot"
data=$work/full/flashinfer/data
# Templates that FlashInfer reads even where the module is there.
cp "$data"/csrc/batch_decode* "$data"/csrc/batch_prefill* "$work/site/flashinfer/data/csrc/"
if [ $jit = yes ]; then
    find "$data/csrc" -maxdepth 1 -type f -size -60k -exec cp {} "$work/site/flashinfer/data/csrc/" \;
    mkdir -p "$work/site/flashinfer/data/cutlass/tools/util"
    cp -r "$data/include" "$data/cccl" "$data/spdlog" "$work/site/flashinfer/data/"
    cp -r "$data/cutlass/include" "$work/site/flashinfer/data/cutlass/"
    cp -r "$data/cutlass/tools/util/include" "$work/site/flashinfer/data/cutlass/tools/util/"
fi
# What is left must still be importable.
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$work/site:$work/full${PYTHONPATH:+:$PYTHONPATH}" \
    "$python" -W ignore -c "import flashinfer"
tar czf "$dir/flashinfer.tar.gz" -C "$work/site" .

ls -l "$dir"/whl "$dir/flashinfer.tar.gz" | awk 'NF > 8 {print $5, $9}'
bytes=$(cat "$dir"/whl/*.whl "$dir/flashinfer.tar.gz" | wc -c)
echo "$bytes bytes in all, kernels compiled here: $(ls "$work/aot" | wc -l)"
if [ "$bytes" -gt $((max_mib << 20)) ]; then
    echo "more than $max_mib MiB" >&2
    exit 1
fi
[ $status = 0 ] || [ $jit = yes ] || { echo "kernels are missing" >&2; exit 1; }
[ $status = 0 ] || echo "some kernels are missing: there they are compiled when they are first used"
