# Silos whose account protects persons, and a server that learns sums of theirs alone: from empty volumes.
cp deploy/demo-persons.yaml "$work/deploy/demo.yaml"
for silo in $silos; do echo 'unit: person' >> "$work/deploy/$silo.yaml"; done
for silo in $silos; do compose run --rm "$silo-enrol"; done
compose --profile shuffle run --rm roster
with_shuffler
compose --profile shuffle up --detach --no-build 2>&1 | tail -2
silos_healthy
within 300 "the shuffler is healthy" healthy shuffler
train_sums persons /deploy/demo.yaml
for silo in $silos; do
  compose exec -T "$silo" fedsim ledger show /state | tee "$work/shown"
  grep -q "of one person" <<< "$(tr '\n' ' ' < "$work/shown")" || { echo "$silo's account is not of persons" >&2; exit 1; }
  paid_and_answered "$silo"
  say "$silo: ledger of persons whole, every round paid for and answered once, receipt verified"
done
