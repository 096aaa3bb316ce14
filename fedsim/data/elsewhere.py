"""The data section of a scenario for silos that have records of their own: nothing to open here."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.data.dataset import Dataset
from fedsim.data.source import Source


class Elsewhere(Dataset):
    """The silos' own records, which only they have; for `fedsim deploy`, and the default there."""

    name: Literal["silos"] = Field("silos", description="The data set's name.")

    def open(self) -> Source:
        """InputError: only silos can open their records."""
        hint = "name the records: only `fedsim deploy`, whose silos have their own, goes without"
        raise InputError("scenario.data", self.name, hint)
