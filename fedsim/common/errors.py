"""The two ways in which fedsim says no."""

from __future__ import annotations


class InputError(ValueError):
    """Input that a person can mend: names the field, the value and what would be right."""

    def __init__(self, field: str, value: object, hint: str) -> None:
        text = repr(value)
        shown = text if len(text) <= 200 else text[:197] + "..."
        super().__init__(f"{field}: {shown}: {hint}")
        self.field, self.value, self.hint = field, value, hint

    def __reduce__(self) -> tuple[type[InputError], tuple[str, object, str]]:
        return InputError, (self.field, self.value, self.hint)


class Refused(Exception):
    """A silo declines to release. The text is made of public values only, never of records."""


class PluginError(Exception):
    """Code of an algorithm or of another part failed: says which, where and why, in one line.

    The text quotes the error that the code raised, so it is for whoever holds what the code was given: a
    simulation, a dry run, a server. A silo's daemon tells nobody. The error itself is the cause.
    """
