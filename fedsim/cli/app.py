"""What every command registers with: the application, shared arguments, and how errors are shown."""

from __future__ import annotations

import errno
import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import click
import typer
from typer.core import TyperGroup
from typer.main import get_group

import fedsim
from fedsim.common.errors import InputError, PluginError, Refused
from fedsim.common.files import VARIABLE, check_free, check_there
from fedsim.common.process import check_reachable

if TYPE_CHECKING:
    from fedsim.scenario.model import Scenario

RUNS, PRIVACY, DEPLOYMENT, SCENARIOS = "Runs", "Privacy", "Deployment", "Scenarios and tables"
"""Parts of `fedsim --help`, in this order."""

DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
EXIT_CODES = (
    "Exit codes: 0 done; 1 incomplete (a worker, a cell or the disk failed, a health check failed, a claim "
    "is broken); 2 refused: one line says which input and what would be right; 130 interrupted, and what was "
    "finished is kept."
)


_MODULES = {
    "simulate": "simulate sweep",
    "release": "release",
    "runs": "compare report predict export",
    "privacy": "privacy audit",
    "bounds": "bounds theorems",
    "deploy": "up deploy",
    "federation": "kit federation",
    "operate": "status runs stop down",
    "parties": "certs node shuffler preflight silo",
    "ledger": "ledger",
    "offers": "offers",
    "parts": "list schema check",
    "init": "init",
    "inspect": "inspect",
    "contributions": "contributions",
    "new": "new",
}
"""Modules of `fedsim.cli`, each of which registers these commands with `app`."""
_LATER = ("federation", "silo", "ledger", "offers")  # commands with commands of their own
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
COMMANDS = {name: _MODULE_OF[name] for name in sorted(_MODULE_OF, key=lambda name: name in _LATER)}
"""{command: its module}, as `fedsim --help` lists them."""


class _Commands(TyperGroup):
    """Commands, each imported when it is asked for.

    Bad input and refusals are one line on stderr and exit code 2, a full disk one line and 1. With
    `fedsim --debug` the traceback comes first.
    """

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command; a name that is none imports all, among which there may be a similar one."""
        if name not in self.commands:
            self._load([name] if name in COMMANDS else list(COMMANDS))
        return super().get_command(context, name)

    def list_commands(self, context: click.Context) -> list[str]:
        """All of them, in the order of `fedsim --help`."""
        self._load(list(COMMANDS))
        return list(COMMANDS)

    def _load(self, names: Sequence[str]) -> None:
        for name in names:
            import_module(f"fedsim.cli.{COMMANDS[name]}")
        self.commands = get_group(app).commands

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (click.ClickException, typer.Exit):
            raise
        except Exception as error:
            if context.params["debug"]:
                traceback.print_exc()
            if isinstance(error, InputError | PluginError):
                fail(f"error: {error}")
            if isinstance(error, Refused):
                fail(f"refused: {error}")
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                fail(f"failed: {error.filename or 'a file'}: cannot be written ({error.strerror})", FAILED)
            raise


app = typer.Typer(
    cls=_Commands,
    help="Federated learning between organisations that do not trust the server: every silo's messages are "
    "differentially private, each within its own budget.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def scenarios(incomplete: str) -> list[str]:
    """Shell completion of SCENARIO: names of shipped scenarios, YAML files and folders."""
    from fedsim.scenario.catalogue import shipped

    near = Path(incomplete or ".")
    folder = near if incomplete.endswith("/") or not incomplete else near.parent
    places = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [str(file) for file in places if file.suffix in (".yaml", ".yml")]
    folders = [f"{file}/" for file in places if file.is_dir() and not file.name.startswith(".")]
    return [name for name in (*shipped(), *files, *folders) if name.startswith(incomplete)]


SCENARIO = "Name of a scenario that comes with fedsim, or a file (YAML)"
ScenarioFile = Annotated[
    Path, typer.Argument(metavar="SCENARIO", help=f"{SCENARIO}.", autocompletion=scenarios)
]


def _scenario_or(option: str) -> Any:
    """SCENARIO of a command that does without where an option says what it is about."""
    return typer.Argument(metavar="[SCENARIO]", help=f"{SCENARIO}; or {option}.", autocompletion=scenarios)


ScenarioOrResume = Annotated[Path | None, _scenario_or("--resume")]
ScenarioOrRun = Annotated[Path | None, _scenario_or("--run")]
_SET = "Override a field, e.g. algorithm.step_size=0.5; may be repeated."
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help=_SET)]
Address = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="An existing Ray cluster instead of a local one.")
]
_DATA_DIR = (
    "Folder of data files that are not beside the scenario, and of downloads; "
    "default FEDSIM_DATA, else a cache folder."
)
DataDir = Annotated[Path | None, typer.Option(metavar="DIR", help=_DATA_DIR)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SummaryAsJson = Annotated[
    bool, typer.Option("--json", help="Print the summary as JSON; progress goes to stderr.")
]


def ready(
    path: Path, overrides: Sequence[str] | None, out: Path | None = None, single: bool = True
) -> Scenario:
    """The scenario, to be written to `out`; refuses what is wrong without records before torch is loaded.

    Args:
        single: whether one with a `sweep` section is refused.
    """
    import fedsim.report  # noqa: F401  (a silo's installation has none, and refuses before it looks for one)
    from fedsim.scenario.load import load

    scenario = load(path, overrides or [])
    check_ready(scenario)
    if single:
        scenario.check_single()
    if out is not None:
        check_free(out)
    return scenario


def check_ready(scenario: Scenario) -> None:
    """Check all that can be checked without records: fields, files, downloads, the cluster's address."""
    from fedsim.data.fetch import obtain

    scenario.check()
    obtain(scenario.data.downloads)
    for field, file in scenario.data.files.items():
        check_there(f"scenario.data.{field}", file)
    if scenario.runtime.address is not None:
        check_reachable(scenario.runtime.address, "scenario.runtime.address")


def on_runtime(name: str | None, address: str | None) -> list[str]:
    """Overrides for a runtime and the address of its cluster."""
    given = {"name": name, "address": address}
    return [f"runtime.{key}={json.dumps(value)}" for key, value in given.items() if value is not None]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedsim {fedsim.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options that come before a command."""


@contextmanager
def spoken(names: Mapping[str, str]) -> Iterator[None]:
    """Errors name an argument or option as it is typed: {field: argument}."""
    try:
        yield
    except InputError as error:
        first, dot, rest = error.field.partition(".")
        raise InputError(names.get(first, first) + dot + rest, error.value, error.hint) from None


@contextmanager
def data_from(folder: Path | None) -> Iterator[None]:
    """Inside, the data folder is `folder`, also for processes started; a terminal shows downloads."""
    from fedsim.data.fetch import SHOW

    if folder is not None and not folder.is_dir():
        raise InputError("--data-dir", str(folder), "is no folder; make it first")
    before = {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
    shown = SHOW.set(_download)
    if folder is not None:
        os.environ[VARIABLE] = str(folder.resolve())
    try:
        yield
    finally:
        SHOW.reset(shown)
        os.environ.pop(VARIABLE, None)
        os.environ.update(before)


@contextmanager
def _download(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr if that is a screen."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.update(task, advance=count)


def check_unused(place: Path, field: str) -> None:
    """InputError on `field` where something is at the place already: it is never written over."""
    if place.exists() or place.is_symlink():
        raise InputError(field, str(place), "is there already, and is left as it is; give another")


def fail(message: str, code: int = REFUSED) -> NoReturn:
    """End with one line on stderr."""
    typer.echo(" ".join(message.split()), err=True)  # a library's message, or a value, may have lines
    raise typer.Exit(code)
