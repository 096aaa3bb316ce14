"""A silo as a service of the system: started from its file, stopped by a signal, asked how it is."""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from pathlib import Path

from fedsim.common.errors import InputError
from fedsim.common.process import keep_to_one_thread
from fedsim.wire import service
from fedsim.wire.connections import listening, token_of
from fedsim.wire.daemon import Bounds, Daemon
from fedsim.wire.health import check
from fedsim.wire.logs import log_to
from fedsim.wire.messages import Greeting
from silos.front.config import Config, load_config
from silos.front.enrolled import no_ledger
from silos.front.silo import Silo

log = logging.getLogger("silos.service")


def run(
    file: Path,
    *,
    enrol_first: bool,
    serve: bool,
    health: bool,
    insecure_simulation: bool,
    dry_run: bool = False,
) -> int:
    """Run `python -m silos` or `fedsim silo`; returns the exit code.

    With `enrol_first` the silo's ledger and identity are made, and only with `serve` it listens after that; a
    `dry_run` shows what that would fix and writes nothing. With `health` the running daemon is asked instead.
    InputError if the silo's file, or something that it names, is not as it must be; Refused if the silo may
    not answer, or its ledger cannot be used.
    """
    os.umask(0o077)
    config = load_config(file)
    if dry_run and not enrol_first:
        raise InputError("--dry-run", True, "shows an enrolment: give --enrol too")
    if enrol_first:
        from silos.front.enrolment import Proposed, enrol
    if dry_run:
        print(*Proposed.of(config).lines, "Dry run: nothing was written.", sep="\n")
        return 0
    if enrol_first:
        print(json.dumps(enrol(config, partial(print, file=sys.stderr))), flush=True)
        if not serve:
            return 0
    if health:
        return check(config.listen.address, Greeting.kind, f"silo {config.name}")
    return _serve(config, insecure_simulation)


def _serve(config: Config, insecure_simulation: bool) -> int:
    """Answer until SIGTERM or SIGINT, or a write fails; what is in hand then is finished."""
    keep_to_one_thread()
    service.end_at_signal()  # nothing is in hand yet
    token = token_of(config.listen)
    if not config.ledger.exists():
        raise no_ledger(config)
    log_to(config.log, "silos", "fedsim.wire")
    with closing(Silo.open(config, insecure_simulation)) as silo, listening(config.listen) as listener:
        daemon = Daemon(silo, listener, Bounds(silo.frame_bytes, answers=4, drain=4.0), token)
        metrics: AbstractContextManager[None] = nullcontext()
        if config.metrics is not None:
            from silos.front.metrics import exposed_silo

            metrics = exposed_silo(config.metrics, silo, daemon)
        with metrics:
            silo.warn()
            log.info("silo %s listens", config.name)
            finished = service.serve(daemon)
    log.info("silo %s has stopped", config.name)
    return service.stopped(daemon, finished)
