"""How a test says that input is refused: by field, value and kind, not by the sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import ANY as ANY

import pytest

from fedsim.common.errors import InputError


@contextmanager
def refused(field: str, value: Any = ANY, *words: str) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """The block raises an `InputError` of exactly this field, and of this value where one is given.

    `words` are what the message must have besides: the names and numbers that a person needs, such as the
    silo, the line or the option that would be right, never a whole sentence. Compared as text, not as regular
    expressions. After the block the error is in the yielded info.

        with refused("scenario.privacy.epsilon", -1.0):
            parse(tree)
        with refused("scenario.data.path", "a.csv", "line 3", "encoding"):
            read(path)
        with refused("scenario.problem") as caught:
            check(problem)
        assert caught.value.value == problem
    """
    with pytest.raises(InputError) as caught:
        yield caught
    error = caught.value
    assert error.field == field, str(error)
    assert error.value == value, str(error)
    assert lacking(error, " | ".join(words)) == [], str(error)


def lacking(text: object, words: str) -> list[str]:
    """Which of `words`, separated by " | ", the text, or the error's text, does not have."""
    return [word for word in words.split(" | ") if word not in str(text)]
