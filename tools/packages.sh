# Debian packages that Sinkgrad needs; sourced by the scripts beside it. Works on Debian 12 and newer and on Ubuntu 22.04 and newer.
sinkgrad_packages="g++ cmake ninja-build ccache libdnnl-dev libopenblas-openmp-dev libhwy-dev zlib1g-dev libjpeg-dev libhdf5-dev \
libsentencepiece-dev libarchive-dev nlohmann-json3-dev libcli11-dev libfmt-dev libopenmpi-dev openmpi-bin catch2 libbenchmark-dev pkg-config doxygen ca-certificates"
# To fuzz the parsers and to test the pages; Debian's names, elsewhere these tests are skipped.
sinkgrad_fuzz_packages="clang-16 libclang-rt-16-dev"
sinkgrad_browser_packages="python3 chromium chromium-driver"

# Installs what is missing when run as root; otherwise says what to ask an administrator for.
install_packages() {
  local missing=""
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
  done
  [ -z "$missing" ] && return 0
  if [ "$(id -u)" != 0 ]; then
    echo "sinkgrad: these Debian packages are missing: apt-get install$missing" >&2
    return 1
  fi
  echo "sinkgrad: installing$missing" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# build FOLDER [CMAKE OPTION...]: configures and builds, quietly unless it fails.
build() {
  local folder=$1
  shift
  cmake -S "$root" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" | grep '^-- sinkgrad' || true
  cmake --build "$folder"
}
