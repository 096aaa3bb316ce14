"""Logs of a deployment's processes: text for people or JSON for programs, on stderr and in rotating files."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.common.section import Section, settings

VARIABLE = "FEDSIM_LOG"  # of the environment: the fields of `Logging`, as YAML


class Logging(Section):
    """How a process logs."""

    format: Literal["text", "json"] = Field("text", description="of a line")
    megabytes: float = Field(5.0, ge=0.001, le=1e6, description="of a file; then a new one begins")
    keep: int = Field(3, ge=1, le=1000, description="files that are kept beside the newest")


def log_to(file: Path | None, *loggers: str) -> None:
    """Log to stderr and `file`, mode 0600; InputError if that cannot be written, or the variable is wrong."""
    logging.raiseExceptions = False  # a full disk is no reason to stop, nor to fill stderr
    text = os.environ.get(VARIABLE, "{}")
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError:
        tree = None
    if not isinstance(tree, dict):
        raise InputError(VARIABLE, text, "a mapping, as {format: json, megabytes: 10, keep: 5}")
    how = settings(Logging, tree, VARIABLE)
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    try:
        if file is not None:
            size = int(how.megabytes * 1e6)
            handlers.append(_Rotating(file, maxBytes=size, backupCount=how.keep, encoding="utf-8"))
    except OSError as error:
        raise InputError("log", str(file), f"a file that can be written ({error.strerror})") from None
    for handler in handlers:
        plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
        handler.setFormatter(_Json() if how.format == "json" else plain)
    for name in loggers:
        top = logging.getLogger(name)
        top.setLevel(logging.INFO)
        for handler in handlers:
            top.addHandler(handler)


class _Rotating(RotatingFileHandler):
    def _open(self) -> Any:
        """The newest file, its owner's alone whatever the umask."""
        Path(self.baseFilename).touch(mode=0o600)
        return super()._open()


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One line: time (UTC), level, logger and message."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said = {"time": time, "level": record.levelname, "logger": record.name}
        error = {"error": self.formatException(record.exc_info)} if record.exc_info else {}
        return json.dumps({**said, "message": record.getMessage(), **error})
