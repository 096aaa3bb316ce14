#!/bin/sh
# A silo's enrolment: its ledger and its identity, whose public half everybody may read. A second one changes nothing.
set -eu
if [ ! -e /state/ledger.sqlite ]; then
  if [ -e /public/identity.pub ]; then
    echo "error: /state: has no ledger, and a silo has enrolled: its volume is lost or not mounted; do not enrol again, its budget counts as spent" >&2
    exit 2
  fi
  python -m silos --config /config/silo.yaml --enrol
fi
install -m 444 /state/identity.pub /public/identity.pub
