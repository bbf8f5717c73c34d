#!/usr/bin/env bash
# Run the GPU checks on a machine that reaches no package registry, from the repository's root.
#
#   bench/gpu/offline.sh SITE OUT [STAGES]
#
# SITE: folder with SGLang's packages (and its entry points); OUT: results, server logs, and the kernels compiled on the
# way, which make the next start short when they are unpacked into the home folder first. Every step has a hard limit.
set -u
site=$(realpath "$1") out=$(mkdir -p "$2" && realpath "$2") stages=${3:-exactness,speed,llguidance,plain}
export PYTHONPATH=$site FLASHINFER_DISABLE_VERSION_CHECK=1 HF_HUB_OFFLINE=1 MAX_JOBS=${MAX_JOBS:-$(nproc)}
export FLASHINFER_CUDA_ARCH_LIST=${FLASHINFER_CUDA_ARCH_LIST:-9.0a}
limit=${LIMIT_S:-560}
start=$SECONDS

save() {
    tar -C "$HOME" --exclude='*.o' -czf "$out/kernels.tar.gz" .cache/flashinfer .cache/tvm-ffi 2>/dev/null
}
trap save EXIT

if [[ $stages == *kernels* ]]; then
    timeout 200 python3 -m pytest -q -m gpu tests/gpu 2>&1 | tail -n 60 >"$out/kernels.txt"
    tail -n 5 "$out/kernels.txt"
fi
stages=$(sed 's/kernels,\?//' <<<"$stages")
left=$((limit - SECONDS + start))
if [[ -n $stages && $left -gt 60 ]]; then
    timeout --signal=INT --kill-after=20 "$left" \
        python3 -m bench.gpu.run --stages "$stages" --out "$out/run.jsonl" --total-s "$((left - 60))" --limit-s 150
fi
