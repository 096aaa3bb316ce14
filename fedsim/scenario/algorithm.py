"""The `algorithm` section of a scenario: an algorithm by its name, or one that was given as an object."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Annotated, Any, Self, get_type_hints

from pydantic import ConfigDict, PrivateAttr, WrapValidator

from fedsim.algorithms.registry import ALGORITHM_HAS, algorithms, is_algorithm
from fedsim.algorithms.section import AUTO, NOT_NUMBERS, AlgorithmSection, section_of
from fedsim.common.errors import InputError
from fedsim.common.objects import changed, stand, standing_by
from fedsim.common.plugins import file_of
from fedsim.common.registry import OneOf, Registry
from fedsim.common.section import validated
from fedsim.protocol.batch import KINDS
from fedsim.protocol.contract import Algorithm


class GivenAlgorithm(AlgorithmSection):
    """An algorithm that was given as an object. As text it is its class's name and its numbers, to be read by
    people, and in a sweep as `plain`; where it travels, the object does.
    """

    model_config = ConfigDict(extra="allow")
    _object: Algorithm = PrivateAttr()

    @classmethod
    def of(cls, algorithm: Algorithm) -> Self:
        """The section that stands for an object; InputError if it is no algorithm."""
        kind = type(algorithm)
        if isinstance(algorithm, type):
            hint = f"is a class: give an object of it, {algorithm.__name__}(...) with its numbers"
            raise InputError("algorithm", algorithm, hint)
        if not is_algorithm(kind):
            raise InputError("algorithm", algorithm, f"must be a dataclass's object with {ALGORITHM_HAS}")
        name = next((name for name, known in algorithms().items() if known is kind), kind.__name__)
        numbers = {key: _plain(value) for key, value in _values(algorithm).items() if key not in NOT_NUMBERS}
        section = cls(name=name, **numbers)
        section._object = algorithm
        return section

    @property
    def kind(self) -> type[Algorithm]:
        """The object's class."""
        return type(self._object)

    def build(self) -> Algorithm:
        """The object itself."""
        return self._object

    def plain(self) -> dict[str, Any]:
        """Plain values that stand for the object inside `fedsim.common.objects.standing`.

        InputError where another class, or an object with other values than numbers, has the same name.
        """
        tree = self.model_dump(mode="json", exclude_unset=True)
        if algorithms().get(self.name) is not self.kind:
            before = standing_by(self.name, GivenAlgorithm)
            if before is not None and before._hidden() != self._hidden():
                raise InputError("algorithm", self._object, f"two objects named {self.name}; rename a class")
            stand(self.name, self)
        return tree

    def _hidden(self) -> list[Any]:
        """Its class, and the values that no plain value stands for."""
        values = _values(self._object).values()
        return [self.kind, *(id(each) for each in values if type(each) is not type(_plain(each)) is str)]

    def read(self, tree: Mapping[str, Any]) -> Self:
        """The section of plain values, some of which may differ from the object's."""
        own, types = self.model_dump(mode="json"), get_type_hints(self.kind, include_extras=True)
        return self.having(**numbers) if (numbers := changed(tree, own, types)) else self

    def having(self, **numbers: Any) -> Self:
        """A section with other numbers; the object gets them too."""
        return self.of(replace(self._object, **numbers))  # type: ignore[type-var]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the object, not the section."""
        return type(self).of, (self._object,)


def _values(algorithm: Algorithm) -> dict[str, Any]:
    return {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, KINDS):
        return {"sampler": value.sampler, **asdict(value)}
    if isinstance(value, bool | int | float | str | None):
        return value
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))  # the same in every process


SECTIONS: Registry[type[AlgorithmSection]] = Registry([*algorithms(), AUTO], section_of)


def _of_file(value: Any, validate: Callable[[Any], AlgorithmSection]) -> AlgorithmSection:
    """The section of a file's class has that class's fields, and an object's is the object."""
    if isinstance(value, AlgorithmSection):
        return value
    if isinstance(value, Mapping) and (given := standing_by(str(value.get("name")), GivenAlgorithm)):
        return given.read(value)
    if not (isinstance(value, Mapping) and file_of(value.get("name"))):
        return validate(value)
    try:
        return validated(section_of(value["name"]), "algorithm", value)
    except InputError as error:
        raise InputError(error.field.removeprefix("scenario.algorithm."), error.value, error.hint) from error


AlgorithmConfig = Annotated[AlgorithmSection, OneOf(SECTIONS), WrapValidator(_of_file)]
