# Enrol, up twice, healthy, train, kill a daemon in mid-run, finish, check ledgers and that no silo reaches another or
# the internet, renew the certificate, train again with the profile `shuffle`.
for silo in $silos; do compose run --rm "$silo-enrol"; done
for _ in 1 2; do compose up --detach --no-build 2>&1 | tail -2; done
say "up, twice"
silos_healthy
for silo in $silos; do
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
for silo in $silos; do
  compose exec -T $silo fedsim ledger show /state
  paid_and_answered "$silo"
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
with_shuffler
compose restart $silos 2>&1 | tail -1
silos_healthy
train_sums sums /deploy/demo.yaml --set name=sums --set privacy.mechanism=summed_gaussian \
  --set privacy.honest_fraction=1 --set privacy.epsilon=1
compose exec -T silo-1 fedsim ledger show /state | tail -6
say "trained by sums, through the shuffler"
