"""An algorithm around another one says and does what that one does, but for what it changes."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from fedsim.algorithms.mean_regularised import MeanRegularised
from fedsim.algorithms.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedsim.algorithms.prepared import Prepared, Standardise
from fedsim.algorithms.quantile_clip import QuantileClip
from fedsim.algorithms.with_public import WithPublic
from fedsim.problems.public_records import PublicRecords
from fedsim.protocol.batch import Subsample
from fedsim.protocol.blame import Blame
from fedsim.protocol.contract import Algorithm, Traits, innermost, traits

RULE = QuantileClip(quantile=0.9, rounds=2, share=0.1)
RECORDS = PublicRecords(torch.zeros(1, 2), torch.zeros(1), "")
WRAPPED = {
    "a private clip": RULE.around,
    "stages": lambda inner: Prepared((Standardise(share=0.1),), (1.0,), inner),
    "public records": lambda inner: WithPublic(inner, RECORDS, 1.0),
    "two": lambda inner: Prepared((Standardise(share=0.1),), (1.0,), RULE.around(inner)),
}


@dataclass(frozen=True)
class Plain:
    """What a user may write, who knows no class of ours."""

    linear: ClassVar[bool] = False
    clip_norm: float = 0.25

    def server(self, w: Any, problem: Any, public: Any, rng: Any) -> Any: ...
    def silo(self, problem: Any, broadcast: Any, ask: Any, memory: Any) -> Any: ...


def test_of_a_plain_algorithm_what_it_does_not_say_is_the_default() -> None:
    assert traits(Plain()) == Traits(clip_norm=0.25)
    assert traits(object()) == Traits()


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize(
    "inner", [Plain(), NoisyMinibatchSGD(num_rounds=3, step_size=0.5, clip_norm=2.0, batch=Subsample(0.5))]
)
def test_a_wrapper_says_what_its_algorithm_says(wrap: Any, inner: Algorithm) -> None:
    wrapped = wrap(inner)
    own = {"beside": dict, "any_size": False}  # which wrappers may have
    assert traits(wrapped)._replace(**own) == traits(inner)._replace(**own)
    assert traits(wrapped).beside() == {}
    assert wrapped.linear is inner.linear
    assert innermost(wrapped) is inner
    assert type(inner).__qualname__ in str(Blame(wrapped).breach("here", "it breaks"))
    with pytest.raises(AttributeError):
        wrapped.no_such_number  # noqa: B018


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_what_own_models_are_compared_with_is_wrapped_alike(wrap: Any) -> None:
    inner = MeanRegularised(num_rounds=3, step_size=0.5, own_step_size=0.1, pull=1.0, clip_norm=1.0)
    found = traits(wrap(inner)).beside()
    assert {name: innermost(each) for name, each in found.items()} == inner.beside()
    assert {type(each) for each in found.values()} == {type(wrap(inner))}
