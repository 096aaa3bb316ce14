#!/bin/sh
# The shuffler's first start: its keys, whose public halves everybody may read. Later starts keep them.
set -eu
if [ ! -e /state/released.sqlite ]; then
  python -m shuffler --config /config/shuffler.yaml --enrol
fi
install -m 444 /state/identity.pub /state/envelopes.pub /public/
