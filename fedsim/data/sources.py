"""From a `data` section to the data set it names."""

from __future__ import annotations

from fedsim.data.breast_cancer import BreastCancerSource
from fedsim.data.config import AnyData
from fedsim.data.csv_source import CsvSource
from fedsim.data.datasets import BreastCancer, Csv, Digits
from fedsim.data.digits import DigitsSource
from fedsim.data.source import Source
from fedsim.data.synthetic import SyntheticSource


def open_source(data: AnyData) -> Source:
    """The data set, with nothing read but the header of a table."""
    if isinstance(data, BreastCancer):
        return BreastCancerSource()
    if isinstance(data, Digits):
        return DigitsSource(data)
    if isinstance(data, Csv):
        return CsvSource(data)
    return SyntheticSource(data)
