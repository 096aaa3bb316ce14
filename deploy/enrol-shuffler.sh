#!/bin/sh
# The shuffler's first start: its keys, whose public halves everybody may read. Later starts keep them.
set -eu
if [ ! -e /state/released.sqlite ]; then
  if [ -e /public/identity.pub ]; then
    echo "error: /state: has no notes, and a shuffler has enrolled: its volume is lost or not mounted; see docs/shuffler.md" >&2
    exit 2
  fi
  python -m shuffler --config /config/shuffler.yaml --enrol
fi
install -m 444 /state/identity.pub /state/envelopes.pub /public/
