"""The roster and the shuffler of a deployed run with secure aggregation: both fit it, or it is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from fedsim.common.errors import InputError
from fedsim.deployment.federation_file import ROOT, Federation
from fedsim.privacy.registry import MECHANISMS
from fedsim.protocol.links import Link
from fedsim.scenario.model import Scenario
from fedsim.scenario.resolve import Resolved
from fedsim.secagg.agreement import ReportContexts
from fedsim.secagg.envelopes import EnvelopeKey
from fedsim.secagg.roster import Roster, load_roster
from fedsim.wire.messages import Offer
from server.aggregate import Totals, summed, weighted
from server.federation import Channel, RemoteSilos
from server.loop import Aggregate
from server.replies import Reports
from server.secure_aggregation import SHUFFLER, KeptRequest, ShufflerClient, SummedSilos
from server.sockets import Sockets


def with_roster(scenario: Scenario, federation: Federation) -> tuple[Scenario, Roster | None]:
    """The scenario with the roster's terms, and the roster; None where silos answer for themselves.
    InputError if the mechanism needs a shuffler and there is none, or the roster is of other silos, or says
    something else than scenario or federation.
    """
    if not MECHANISMS[scenario.privacy.mechanism].sums_only:
        return scenario, None
    entry = federation.shuffler
    if entry is None:
        hint = f"is required with mechanism {scenario.privacy.mechanism}: silos answer through it"
        raise InputError(f"{ROOT}.shuffler", None, hint)
    roster = load_roster(entry.roster)
    if roster.silos != {name: key.hex() for name, key in federation.identities.items()}:
        hint = "a roster of the federation's silos, each with its identity"
        raise InputError(f"{ROOT}.shuffler.roster", str(entry.roster), hint)
    if federation.min_silos is not None and federation.min_silos < roster.min_silos:
        hint = f"at least {roster.min_silos}, as the roster has it"
        raise InputError(f"{ROOT}.min_silos", federation.min_silos, hint)
    own = scenario.privacy
    for field, told, agreed in (
        ("min_silos", own.min_silos, roster.min_silos),
        ("honest_fraction", own.honest_fraction, roster.honest_fraction),
        ("noise_by", own.noise_by, roster.noise_by),
    ):
        if told is not None and told != agreed:
            raise InputError(f"scenario.privacy.{field}", told, f"{agreed}, as the roster has it")
    privacy = own.model_copy(update={"min_silos": roster.min_silos})
    return scenario.model_copy(update={"privacy": privacy}), roster


@contextmanager
def shuffler_client(
    federation: Federation, roster: Roster | None, heads: dict[str, str], channel: Channel | None = None
) -> Iterator[ShufflerClient | None]:
    """The way to the shuffler of a roster: a socket, or the channel that is given. InputError if the server's
    key is not the roster's, or the shuffler has no address.

    The last entry known of the shuffler's chain is kept in `heads`.
    """
    if roster is None or federation.shuffler is None:
        yield None
        return
    key = EnvelopeKey.read(federation.shuffler.key, f"{ROOT}.shuffler.key")
    if key.public != roster.server:
        hint = f"the key that the roster has of the server, {roster.server}"
        raise InputError(f"{ROOT}.shuffler.key", f"{federation.shuffler.key}, {key.public}", hint)
    with ExitStack() as stack:
        way = channel or stack.enter_context(Sockets({SHUFFLER: federation.shuffler.address}))
        yield ShufflerClient(way, roster, key, federation.patience, heads)


def contexts_of(resolved: Resolved, offers: Mapping[str, Offer]) -> ReportContexts | None:
    """What the reports of a run of sums are for; None where silos answer for themselves."""
    if resolved.sums is None:
        return None
    offer = next(iter(offers.values()))  # all that makes contexts is alike in them
    sizes = resolved.problem.dimension, resolved.problem.num_features
    return ReportContexts(offer, resolved.trace.plan, resolved.sums.mechanism, *sizes)


def reports_of(contexts: ReportContexts) -> Reports:
    """What silos send instead of messages."""
    return Reports([contexts.form(r).report_bytes for r in range(len(contexts.plan.rounds))])


def link_to(
    silos: RemoteSilos,
    resolved: Resolved,
    contexts: ReportContexts | None,
    other: ShufflerClient | None,
    kept: KeptRequest,
) -> tuple[Link, Aggregate]:
    """How a run gets its aggregates: from each silo's own messages, or as sums, through the shuffler."""
    if resolved.sums is None or contexts is None or other is None:
        return silos, weighted
    pool, plan = resolved.sums.pool, resolved.trace.plan
    totals = Totals(resolved.algorithm, resolved.problem, plan, contexts.mechanism, pool, resolved.dtype)
    return SummedSilos(silos, other, contexts, totals, kept), summed


def remarks_of(roster: Roster | None) -> list[str]:
    """Who made the sums, for the report."""
    if roster is None:
        return []
    least = f"at least {roster.min_silos} of {len(roster.names)} silos"
    return [
        f"this server saw sums over {least} alone, of roster {roster.digest}, made with the shuffler of "
        f"identity {roster.shuffler.identity}"
    ]
