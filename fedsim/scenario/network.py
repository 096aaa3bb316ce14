"""The networks that a scenario can name, and the problem made of one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedsim.common.errors import InputError
from fedsim.problems.composite import Composite
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_models import Imported, Lenet, Mlp, Model
from fedsim.scenario.section import Section

Width = Annotated[int, Field(ge=1, le=1_000_000)]


class MlpSection(Section):
    """Fully connected layers with ReLU between them."""

    name: Literal["mlp"]
    hidden: Annotated[tuple[Width, ...], Field(max_length=100)] = Field(
        (64,), description="widths of the hidden layers, from the features on; [] is a linear model"
    )

    def build(self) -> Model:
        """The network."""
        return Mlp(self.hidden)


class LenetSection(Section):
    """Two 5x5 convolutions (6 and 16 channels) with max pooling, then 120, 84 and the scores; ReLU."""

    name: Literal["lenet"]
    image: tuple[Width, Width, Width] = Field(
        description="channels, height, width of a record's features, row by row; at least 16 x 16"
    )

    def build(self) -> Model:
        """The network."""
        return Lenet(self.image)


class ModuleSection(Section):
    """A torch module of an installed package."""

    name: Literal["module"]
    path: str = Field(
        description="package.module:attribute, a class or function that returns a torch.nn.Module; called "
        "with (num_features, num_outputs) if it takes two arguments, else without any"
    )

    def build(self) -> Model:
        """The network."""
        return Imported(self.path)


ModelSection = Annotated[MlpSection | LenetSection | ModuleSection, Field(discriminator="name")]


def network(
    section: MlpSection | LenetSection | ModuleSection | None,
    num_features: int,
    num_outputs: int,
    composite: Composite,
) -> NeuralNetwork:
    """The problem.

    Raises:
        InputError: there is no model.
    """
    if section is None:
        expected = "is required with neural_network, such as {name: mlp, hidden: [64]}"
        raise InputError("scenario.problem.model", None, expected)
    return NeuralNetwork(num_features, num_outputs, composite, section.build())
