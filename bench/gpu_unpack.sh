# To be read by a shell (`. bench/gpu_unpack.sh DIR SITE`) on a GPU machine without a network: puts
# the contents of DIR, made by bench/gpu_pack.sh, into the folder SITE and that on the path.
python3 -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$2" "$1"/whl/*.whl &&
    tar xzf "$1/flashinfer.tar.gz" -C "$2" &&
    export PYTHONPATH="$2${PYTHONPATH:+:$PYTHONPATH}" FLASHINFER_WORKSPACE_BASE="$2/jit" &&
    python3 -c 'import flashinfer, msgspec; print("flashinfer", flashinfer.__version__)'
