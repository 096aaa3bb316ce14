#!/usr/bin/env bash
# Run docker-compose.yml for real: enrol, up twice, healthy, train, kill a daemon in mid-run, finish, check ledgers
# and that no silo reaches another or the internet, renew the certificate, train again with the profile `shuffle`, down.
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
cp -r docker-compose.yml deploy "$work"/
mkdir -p "$work/runs/compose"
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
restarts() { podman inspect --format '{{.RestartCount}}' "$(container "$1")"; }
host_pid() { podman inspect --format '{{.State.Pid}}' "$(container "$1")"; }

for silo in silo-1 silo-2 silo-3; do compose run --rm $silo-enrol; done
for _ in 1 2; do compose up --detach --no-build 2>&1 | tail -2; done
say "up, twice"
for silo in silo-1 silo-2 silo-3; do within 600 "$silo is healthy" healthy $silo; done
for silo in silo-1 silo-2 silo-3; do
  compose exec -T $silo fedsim ledger show /state --json | python3 -c 'import json, sys; assert json.load(sys.stdin)["runs"] == []'
done
[ -z "$(container train)" ] || { echo "services that start must not train" >&2; exit 1; }
say "starting services has spent nothing"
compose run --detach train > /dev/null
within 600 "silo-2 has answered ten rounds" past silo-2 10
victim=$(host_pid silo-2)
kill -9 "$victim"
say "killed silo-2's daemon (process $victim), after $(answered silo-2) rounds"
within 900 "the run has ended" exited train
code=$(podman inspect --format '{{.State.ExitCode}}' "$(container train)")
podman logs "$(container train)" 2>&1 | tail -25
[ "$code" = 0 ] || { echo "the run ended with exit code $code" >&2; exit 1; }
[ "$(host_pid silo-2)" != "$victim" ] || { echo "silo-2 was not killed" >&2; exit 1; }
say "silo-2 was started again by the engine ($(restarts silo-2) times)"

find "$work/runs/compose" -name 'report.html' | grep -q . || { echo "no page" >&2; exit 1; }
say "the page is there: $(find "$work/runs/compose" -type f -printf '%P ' )"
for silo in silo-1 silo-2 silo-3; do
  compose exec -T $silo fedsim ledger show /state
  compose exec -T $silo fedsim ledger show /state --json > "$work/$silo.json"
  run=$(python3 - "$work/$silo.json" << 'P'
import json, sys
(run,) = json.load(open(sys.argv[1]))["runs"]
assert not run["open"] and run["rounds"] == run["answered"] == list(range(run["planned"])), run
print(run["run"])
P
  )
  compose exec -T $silo sh -c "fedsim ledger receipt /state $run > /tmp/receipt.json && fedsim ledger verify /tmp/receipt.json --key /state/identity.pub > /dev/null"
  say "$silo: ledger whole, every round paid for and answered once, receipt verified"
done

connect='import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()'
reach() { compose exec -T "$1" python -c "$connect" "$2" "$3"; }
reach node-1 superlink 8000
say "node-1 reaches the superlink"
for other in node-2 node-3; do
  address=$(podman inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$(container $other)")
  compose exec -d -T $other python -m http.server 9000 --bind 0.0.0.0 --directory /tmp
  within 60 "something listens in $other" reach $other "$address" 9000
  refused "node-1 to $other" reach node-1 "$address" 9000
done
for service in node-1 silo-1 serverapp; do refused "$service to the internet" reach $service 1.1.1.1 443; done
refused "silo-1 to the superlink" reach silo-1 superlink 8000
interfaces=$(compose exec -T silo-1 python -c 'import socket; print(*(name for _, name in socket.if_nameindex()))')
[ "$interfaces" = lo ] || { echo "silo-1 has interfaces: $interfaces" >&2; exit 1; }
say "silo-1 has no network interface but lo"
refused "node-1 reads records" compose exec -T node-1 ls /records
refused "node-1 reads the state" compose exec -T node-1 ls /state
refused "node-1 writes beside its daemon's socket" compose exec -T node-1 touch /run/silo/x
refused "silo-1 writes to its records" compose exec -T silo-1 touch /records/x
compose exec -T silo-1 sh -c 'grep -E "CapEff|NoNewPrivs|^Uid" /proc/self/status'
podman stats --no-stream --format '{{.Name}} {{.MemUsage}}' || true

# The certificate is renewed, the shuffler joins, silos name the roster, and the server learns sums alone.
serial() { podman exec "$(container superlink)" python -c 'import ssl; print(ssl.get_server_certificate(("127.0.0.1", 8000)))' | sha256sum; }
before=$(serial)
compose run --rm renew
compose restart superlink serverapp 2>&1 | tail -1
within 120 "superlink is healthy again" healthy superlink
[ "$(serial)" != "$before" ] || { echo "the certificate is the old one" >&2; exit 1; }
say "the server's certificate is another, of the same authority"
compose --profile shuffle up --detach --no-build 2>&1 | tail -1
within 300 "the shuffler is healthy" healthy shuffler
for silo in silo-1 silo-2 silo-3; do sed -i '/^state:/i rosters: [/roster/roster.yaml]' "$work/deploy/$silo.yaml"; done
echo 'shuffler: {roster: /roster/roster.yaml, key: /server/envelopes.key, socket: /run/shuffler/shuffler.sock}' >> "$work/deploy/federation.yaml"
compose restart silo-1 silo-2 silo-3 2>&1 | tail -1
for silo in silo-1 silo-2 silo-3; do within 600 "$silo is healthy" healthy $silo; done
compose run --rm train fedsim deploy /deploy/demo.yaml --set name=sums --set privacy.mechanism=summed_gaussian \
  --set privacy.honest_fraction=1 --set privacy.epsilon=1 --federation /deploy/federation.yaml --superlink superlink:8000 --out /runs/sums | tail -25
[ -f "$work/runs/compose/sums/report.html" ] || { echo "no page of the sums" >&2; exit 1; }
compose exec -T silo-1 fedsim ledger show /state | tail -6
say "trained by sums, through the shuffler"
compose --profile shuffle down --volumes --timeout 20 2>&1 | tail -2
[ -z "$(podman ps --all --quiet --filter "label=com.docker.compose.project=$project")" ] || { echo "containers are left" >&2; exit 1; }
say "down; all of it passed"
