"""Metrics for Prometheus, on a port of this machine, where a file asks for one.

They are what an answer of the party, or a receipt, says anyway, and nothing else that is made of records.
Nothing says how long anything took, and the collectors of the library's own (processor time, memory) are left
out: how long a silo takes may depend on its records. Who asks often sees when an answer came; so does the
server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from fedsim.common.errors import InputError
from fedsim.common.installed import version
from fedsim.wire.connections import MetricsAt


class Metric(NamedTuple):
    """A counter, whose name ends in `_total`, or a gauge: numbers by the values of its label."""

    name: str  # without `fedsim_`
    words: str
    values: Mapping[str, float]
    label: str


Read = Callable[[], Iterable[Metric]]


def single(name: str, words: str, value: float) -> Metric:
    """A metric without a label."""
    return Metric(name, words, {"": value}, "")


def info() -> Metric:
    """The version of fedsim."""
    return Metric("info", "1, by the installed version.", {version(): 1.0}, "version")


def answers(counts: Mapping[str, int]) -> Metric:
    """A daemon's answers, by the kind of message."""
    return Metric("answers_total", "Answers, by kind of message.", counts, "kind")


@contextmanager
def exposed(at: MetricsAt | None, field: str, read: Read) -> Iterator[None]:
    """Expose what `read` returns, at each request, while the block lasts; nothing without `at`.

    InputError on `field` if the port is taken, or the library is not installed.
    """
    if at is None:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError:
        hint = "needs the library prometheus_client: pip install with [metrics]"
        raise InputError(field, at.port, hint) from None
    registry = CollectorRegistry()
    registry.register(_Collector(read))
    try:
        server, thread = start_http_server(at.port, str(at.address), registry)
    except OSError as error:
        hint = f"a free port of {at.address} ({error.strerror})"
        raise InputError(f"{field}.port", at.port, hint) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Collector:
    def __init__(self, read: Read) -> None:
        self._read = read

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, words, values, label in self._read():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"fedsim_{name}", words, labels=[label] if label else [])
            for key, number in sorted(values.items()):
                family.add_metric([key] if label else [], number)
            yield family
