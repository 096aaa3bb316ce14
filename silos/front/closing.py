"""A run closed by the silo's own operator: its daemon is asked for it as a server would ask."""

from __future__ import annotations

from fedsim.common.errors import InputError, Refused
from fedsim.wire.health import answered
from fedsim.wire.messages import Close, Closed, evaluation_of
from silos.front.config import Config
from silos.vault.book import Run, read

_LEAST = 8  # digits of a run's id
_WITHIN = 30.0  # seconds that the daemon has; a round of the run may be under way


def close_run(config: Config, digits: str) -> Run:
    """Close the run whose id begins so, and its evaluation; what they have not used is given back. InputError
    if it is not one open run's, or no daemon listens; Refused if the daemon says so.
    """
    book = read(config.ledger)
    found = [run for run in book.runs.values() if run.run.startswith(digits)]
    if len(digits) < _LEAST or len(found) != 1:
        hint = f"the first digits, {_LEAST} or more, of one run's id; {len(found)} begin so"
        raise InputError("RUN", digits, hint)
    sessions = found[0].session, evaluation_of(found[0].session)
    if not any(run.open for run in book.runs.values() if run.session in sessions):
        raise InputError("RUN", digits, "is closed already; `fedsim ledger show` has what it cost")
    try:
        asked = Close(run=found[0].run, over=True, head="").body()
        kind, head = answered(config.listen.address, asked, _WITHIN)
    except OSError as error:
        hint = f"the address of a daemon that runs, which alone writes to the ledger ({error})"
        raise InputError("silo.listen", str(config.listen), hint) from None
    if kind != Closed.kind:
        raise Refused(str(head.get("reason")))
    return read(config.ledger).runs[found[0].run]
