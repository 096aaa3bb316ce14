#!/bin/sh
# A silo's first start: its ledger and its identity, whose public half everybody may read. Later starts keep them.
set -eu
if [ ! -e /state/ledger.sqlite ]; then
  python -m silos --config /config/silo.yaml --enrol
fi
install -m 444 /state/identity.pub /public/identity.pub
