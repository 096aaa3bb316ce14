#!/usr/bin/env bash
# Run docker-compose.yml for real: compose-test.sh [PART...], of deploy/compose-test; by default all of them.
# Uses podman behind the docker API, as root, and what apt has:
#   podman buildah runc netavark aardvark-dns iptables docker-compose mmdebstrap
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in podman runc docker-compose python3; do
  command -v "$tool" > /dev/null || { echo "compose-test needs $tool" >&2; exit 2; }
done
[ "$(id -u)" -eq 0 ] || { echo "compose-test needs root" >&2; exit 2; }

work=$(mktemp -d /tmp/compose-test.XXXXXX)
project=fedsimtest
export CONTAINERS_CONF=$work/containers.conf DOCKER_HOST=unix://$work/podman.sock COMPOSE_PROJECT_NAME=$project
started=()

finish() {
  code=$?
  [ "$code" -eq 0 ] || { echo "== failed; last lines of every service"; compose logs --tail=15 2>&1 || true; }
  compose --profile shuffle down --volumes --timeout 20 2>&1 | tail -1 || true
  for pid in "${started[@]}"; do kill "$pid" 2> /dev/null || true; done
  rm -rf "$work"
  exit "$code"
}
say() { printf '== %s  (%ds)\n' "$1" "$SECONDS"; }
compose() { docker-compose --project-directory "$work" --file "$work/docker-compose.yml" "$@"; }
container() { podman ps --all --quiet --filter "label=com.docker.compose.project=$project" --filter "label=com.docker.compose.service=$1"; }
within() {  # SECONDS WHAT COMMAND...: until the command succeeds
  local until=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || { echo "not within its time: $what" >&2; return 1; }
    sleep 1
  done
  say "$what"
}
refused() {  # WHAT COMMAND...: must fail
  local what=$1
  shift
  if "$@" > /dev/null 2>&1; then echo "$what: possible, and must not be" >&2; return 1; fi
  say "$what: refused"
}

# A machine without systemd and with hybrid cgroups: runc, and no more limits than it may set.
cat > "$work/containers.conf" << 'C'
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=10000:10000"]
cgroups = "enabled"

[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
C
trap finish EXIT

base=docker.io/library/python:3.11-slim
if ! podman image exists $base && ! timeout 120 podman pull --quiet $base; then
  say "no image registry: a base image of Debian's packages"
  mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates bookworm "$work/base.tar"
  podman import --quiet --change 'CMD ["python3"]' "$work/base.tar" $base
  rm "$work/base.tar"
fi

# pip inside the build sees this machine's configuration: its files, and the folders that they name.
configured=$(python3 -m pip config list)
places=$(grep -oE "(file://)?/[^' ]+" <<< "$configured" | sed -E 's,^file://,,; s,/simple/?$,,' | sort -u)
mounts=()
for path in /etc/pip.conf "$HOME/.config/pip" /etc/ssl/certs $places; do
  [ ! -e "$path" ] || mounts+=(--volume "$path:$path:ro")
done
index=()
[[ $configured != *find-links* ]] || index=(--build-arg TORCH_INDEX=)  # torch's CPU build is where pip looks
for side in silo server shuffler; do
  folder=$([ $side = silo ] && echo silos || echo $side)
  podman build --quiet --pull=never --network host "${mounts[@]}" "${index[@]}" --file "$folder/Dockerfile" \
    --tag "docker.io/library/fedsim-$side:0.3.0" . > "$work/build.log" 2>&1 || { tail -30 "$work/build.log"; exit 1; }
  say "image of $side: $(podman image inspect --format '{{.Size}}' "docker.io/library/fedsim-$side:0.3.0" | awk '{printf "%.2f GB", $1 / 1e9}')"
done

podman system service --time=0 "$DOCKER_HOST" > "$work/podman.log" 2>&1 &
started+=($!)
# podman leaves health checks to systemd timers, which are not here.
(while sleep 10; do
  for id in $(podman ps --quiet --filter "label=com.docker.compose.project=$project"); do
    podman healthcheck run "$id" > /dev/null 2>&1 || true
  done
done) &
started+=($!)
within 30 "engine answers" docker-compose version > /dev/null

healthy() { [ "$(podman inspect --format '{{.State.Healthcheck.Status}}' "$(container "$1")" 2> /dev/null)" = healthy ]; }
answered() { podman logs "$(container "$1")" 2>&1 | grep -c " reply " || true; }
past() { [ "$(answered "$1")" -ge "$2" ]; }
exited() { [ "$(podman inspect --format '{{.State.Status}}' "$(container "$1")")" = exited ]; }
silos_healthy() { for silo in $silos; do within 600 "$silo is healthy" healthy "$silo"; done; }
with_shuffler() {  # silos name the roster, and the server its shuffler
  for silo in $silos; do sed -i '/^state:/i rosters: [/roster/roster.yaml]' "$work/deploy/$silo.yaml"; done
  echo 'shuffler: {roster: /roster/roster.yaml, key: /server/envelopes.key, socket: /run/shuffler/shuffler.sock}' >> "$work/deploy/federation.yaml"
}
paid_and_answered() {  # SILO: of the one run in its ledger
  local run
  compose exec -T "$1" fedsim ledger show /state --json > "$work/$1.json"
  run=$(python3 - "$work/$1.json" << 'P'
import json, sys
(run,) = json.load(open(sys.argv[1]))["runs"]
assert not run["open"] and run["rounds"] == run["answered"] == list(range(run["planned"])), run
print(run["run"])
P
  ) || return 1
  compose exec -T "$1" sh -c "fedsim ledger receipt /state $run > /tmp/receipt.json && fedsim ledger verify /tmp/receipt.json --key /state/identity.pub > /dev/null"
}
train_sums() {  # OUT SCENARIO OPTIONS...
  local out=$1
  shift
  compose run --rm train fedsim deploy "$@" --federation /deploy/federation.yaml --superlink superlink:8000 --out "/runs/$out" | tail -25
  [ -f "$work/runs/compose/$out/report.html" ] || { echo "no page of $out" >&2; return 1; }
}
restarts() { podman inspect --format '{{.RestartCount}}' "$(container "$1")"; }
host_pid() { podman inspect --format '{{.State.Pid}}' "$(container "$1")"; }

silos="silo-1 silo-2 silo-3"
parts=("$@")
[ "${#parts[@]}" -gt 0 ] || parts=(records persons)
for part in "${parts[@]}"; do
  rm -rf "$work/deploy" "$work/runs"
  cp -r docker-compose.yml deploy "$work"/
  mkdir -p "$work/runs/compose"
  say "$part begins"
  . "deploy/compose-test/$part.sh"
  compose --profile shuffle down --volumes --timeout 20 2>&1 | tail -2
  [ -z "$(podman ps --all --quiet --filter "label=com.docker.compose.project=$project")" ] || { echo "containers are left" >&2; exit 1; }
  say "$part: down; all of it passed"
done
