# To be sourced: `. kernd-bundle/env.sh`. Puts the bundle's programs on the PATH, and CUDA's libraries, where the loader
# does not find them by itself, on LD_LIBRARY_PATH: those of the toolkit, of a Python wheel, of the driver.
# shellcheck shell=bash
KERND_BUNDLE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)  # not exported: to kernd it would be an unknown option
export PATH="$KERND_BUNDLE/bin:$PATH"

kernd_find_library() {
  local name=$1 given=${LD_LIBRARY_PATH:-} folder ldconfig
  shift
  ldconfig=$(command -v ldconfig || echo /sbin/ldconfig)
  ! "$ldconfig" -p 2>/dev/null | grep -qF "$name" || return 0
  for folder in ${given//:/ } "$@"; do
    [[ -e $folder/$name ]] || continue
    [[ ":$given:" == *":$folder:"* ]] || export LD_LIBRARY_PATH="${given:+$given:}$folder"
    return 0
  done
}

kernd_wheels() {
  python3 -c 'import glob, sys
print("\n".join(found for path in sys.path if path for found in glob.glob(path + "/nvidia/*/lib")))' 2>/dev/null
}

kernd_find_library libcuda.so.1 /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/wsl/lib
# shellcheck disable=SC2046  # one word for each folder
kernd_find_library libcublasLt.so.13 ${CUDA_HOME:+"$CUDA_HOME/lib64"} /usr/local/cuda/lib64 \
  /usr/local/cuda-13*/lib64 $(kernd_wheels)
unset -f kernd_find_library kernd_wheels
