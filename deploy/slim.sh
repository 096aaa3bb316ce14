#!/bin/sh
# In the build of an image: remove from the installation (a site-packages folder) what nothing runs: tests, headers,
# torch's own test programs, pip, and the symbols of the two largest libraries. (numpy.testing imports numpy's tests.)
set -eu
cd "$1"
find . -type d -name tests ! -path './numpy/*' -prune -exec rm -rf {} +
find . -name '*.pyi' -delete
find torch/bin -type f ! -name torch_shm_manager -delete 2> /dev/null || true
rm -rf torch/include torch/share torch/test pyarrow/include pip pip-* setuptools setuptools-* pkg_resources \
  _distutils_hack distutils-precedence.pth
if command -v strip > /dev/null; then
  find . \( -path './opendp/lib/*.so' -o -name 'libtorch_*.so' \) -exec strip --strip-unneeded {} +
fi
