"""Clipped sums of networks: against a plain loop over records, and what one record can do to them."""

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch
from support.helpers import Silo, alike, asking, divisor, drive, open_gate, public_of, scripted
from torch import Tensor, nn
from torch.func import functional_call
from torch.profiler import ProfilerActivity, profile

import silos.vault.network as network
from fedsim.algorithms.prox_sgd import ProxSGD
from fedsim.problems.composite import Composite
from fedsim.problems.network import NeuralNetwork
from fedsim.problems.network_layers import Layer
from fedsim.problems.network_models import Imported, Lenet, Mlp, PairedMlp
from fedsim.problems.network_pass import Capture, Matrix
from fedsim.protocol.batch import Full, Poisson, Subsample
from fedsim.protocol.contract import Query
from server.participation import schedule
from silos.vault.layers import Ghost, Term, Whole, _direct, term_of
from silos.vault.records import Records, clipped_sum

SIZES = [2, 7, 6]


def numbers_of(module: nn.Module) -> dict[str, object]:
    names = ("stride", "padding", "dilation")
    return {name: getattr(module, name) for name in names if hasattr(module, name)}


def imported(attribute: str) -> NeuralNetwork:
    return NeuralNetwork(6, 3, model=Imported(f"support.network_modules:{attribute}"))


NETWORKS = {
    "mlp": NeuralNetwork(5, 3, model=Mlp((8, 4))),
    "pairs": NeuralNetwork(5, 3, model=PairedMlp(8)),
    "pairs of squared ReLU": NeuralNetwork(5, 2, model=PairedMlp(8, "squared_relu")),
    "regression": NeuralNetwork(5, 1, model=Mlp((8,))),
    "cnn": NeuralNetwork(256, 10, model=Lenet((1, 16, 16))),
    "sum over places": imported("Wide"),
    "embedding and layer norm": imported("Tokens"),
    "places": imported("places"),
    "bias before matrix": imported("bias_first"),
    "group norm": imported("dropout_and_groups"),
    "layer used twice": imported("Shared"),
    "tied layers": imported("Tied"),
    "parameter of no layer": imported("Own"),
    "steps before records": imported("StepsFirst"),
    "records in another order": imported("Reversed"),
}
every_network = pytest.mark.parametrize("name", NETWORKS)
every_statistic = pytest.mark.parametrize("num_points", [1, 2], ids=["gradient", "gradient_difference"])


def silos_for(problem: NeuralNetwork, sizes: list[int], seed: int = 0) -> list[Silo]:
    """Features in [0, 8), which are tokens too."""
    rng = np.random.default_rng(seed)
    made = []
    for n in sizes:
        y = rng.normal(size=n) if problem.num_outputs == 1 else rng.integers(problem.num_outputs, size=n)
        made.append((rng.uniform(0, 8, (n, problem.num_features)), y.astype(float)))
    return made


def terms_by_loop(problem: NeuralNetwork, silo: Silo, points: list[Tensor]) -> Tensor:
    """Every record's gradient or difference by autograd, one record at a time; (records, d)."""
    rows = []
    for x, y in zip(*map(torch.as_tensor, silo), strict=True):
        signed = []
        for point in points:
            w = point.detach().clone().requires_grad_()
            record = x.to(w.dtype).unsqueeze(0)
            scores = functional_call(problem.module, problem.parameters(w), (record,))
            scores = scores.reshape(1) if problem.num_outputs == 1 else scores
            loss = problem.losses(scores, y.to(w.dtype).unsqueeze(0)).sum()
            signed.append(torch.autograd.grad(loss, w)[0].double())
        rows.append(signed[0] if len(signed) == 1 else signed[0] - signed[1])
    return torch.stack(rows)


def clipped_by_loop(terms: Tensor, clip: float | None) -> Tensor:
    if clip is None:
        return terms.sum(0)
    return (terms * (clip / terms.norm(dim=1, keepdim=True)).clamp_max(1)).sum(0)


def sums(
    problem: NeuralNetwork,
    data: list[Silo],
    points: list[Tensor],
    clip: float | Tensor | None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """(silos, d), whatever blocks the records lie in."""
    total = torch.full((len(data), problem.dimension), torch.nan, dtype=torch.float64)
    for block in Records(data, problem, dtype).full(range(len(data))):
        own = [point if point.dim() == 1 else point[block.members] for point in points]
        bound = clip[block.members] if isinstance(clip, Tensor) else clip
        total[block.members] = clipped_sum(problem, block, own, bound)
    return total


def points_of(problem: NeuralNetwork, num_points: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [(1 + k) * problem.start(k).to(dtype) for k in range(num_points)]


@every_network
@every_statistic
def test_the_clipped_sum_is_that_of_a_loop_over_records(name, num_points):
    """Padded silos of unlike sizes; a clip between the terms' norms, so that some are cut and some not."""
    problem = NETWORKS[name]
    data, points = silos_for(problem, SIZES), points_of(problem, num_points)
    terms = [terms_by_loop(problem, silo, points) for silo in data]
    median = float(torch.cat(terms).norm(dim=1).median())
    for clip in (None, median, 1e6, 0.0):
        expected = torch.stack([clipped_by_loop(each, clip) for each in terms])
        got = sums(problem, data, points, clip)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=3e-6 * median)
    assert not sums(problem, data, points, 0.0).any()


@pytest.mark.parametrize("name", ["mlp", "cnn", "tied layers"])
def test_without_clipping_the_sum_is_that_of_gradients(name):
    """To the precision of the factors of exact products, float32's about."""
    problem = NETWORKS[name]
    data, points = silos_for(problem, SIZES), points_of(problem, 1)
    expected = torch.stack([terms_by_loop(problem, silo, points).sum(0) for silo in data])
    atol = 1e-6 * float(expected.abs().max())
    torch.testing.assert_close(sums(problem, data, points, None), expected, rtol=1e-6, atol=atol)


@pytest.mark.parametrize("name", ["mlp", "pairs", "cnn", "embedding and layer norm"])
@pytest.mark.parametrize("gap", [1e-1, 1e-3])
def test_a_difference_of_two_points_has_float32s_precision(name, gap):
    """Of what is left of two gradients at points that are near: as much as float32 would keep of it."""
    problem = NETWORKS[name]
    data, (point,) = silos_for(problem, [20]), points_of(problem, 1)
    way = torch.randn(len(point), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = [point + gap * way / way.norm(), point]
    expected = terms_by_loop(problem, data[0], points).sum(0)
    error = (sums(problem, data, points, None)[0] - expected).norm() / expected.norm()
    assert float(error) < 5e-6 / gap


@every_network
@every_statistic
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_every_record_alone_adds_at_most_the_clip_and_a_long_one_nearly_that(name, num_points, dtype):
    problem = NETWORKS[name]
    points = points_of(problem, num_points, dtype)
    (silo,) = silos_for(problem, [5])
    for clip in (1e-6, 1e-3, 0.1):
        alone = [(silo[0][i : i + 1], silo[1][i : i + 1]) for i in range(5)]
        norms = sums(problem, alone, points, clip, dtype).norm(dim=1)
        assert float(norms.max()) <= clip
        assert float(norms.max()) >= clip * (1 - 1e-5)


@every_network
def test_a_cohort_answers_as_its_silos_do_alone(name):
    """Shared points and points of each silo's own, one clip and a clip of each silo's own."""
    problem = NETWORKS[name]
    data = silos_for(problem, SIZES)
    (point,) = points_of(problem, 1)
    own = torch.stack([point, 0.5 * point, 2 * point])
    clip = torch.tensor([[0.3], [0.5], [2.0]], dtype=torch.float64)
    for w in (point, own):
        together = sums(problem, data, [w, 0.9 * point], clip)
        for i, silo in enumerate(data):
            mine = w if w.dim() == 1 else w[i]
            alone = sums(problem, [silo], [mine, 0.9 * point], float(clip[i]))
            torch.testing.assert_close(together[i], alone[0], rtol=1e-6, atol=1e-9)


def test_a_batch_of_some_silos_counts_only_what_it_drew():
    problem = NETWORKS["mlp"]
    data = silos_for(problem, SIZES)
    data[1][0][2] = np.nan
    records = Records(data, problem, torch.float64)
    (point,) = points_of(problem, 1)
    drawn = [np.array([2, 4]), np.array([], dtype=np.int64), np.array([0, 1, 5])]
    for block in records.batch([0, 1, 2], [np.array([1]), *drawn[:2]]):
        got = clipped_sum(problem, block, [point], 0.5)
        for member, row in zip(block.members, got, strict=True):
            chosen = [np.array([1]), np.array([4]), drawn[1]][member]  # record 2 of silo 1 is not finite
            expected = torch.zeros(problem.dimension, dtype=torch.float64)
            if len(chosen):
                expected = clipped_by_loop(
                    terms_by_loop(problem, (data[member][0][chosen], data[member][1][chosen]), [point]), 0.5
                )
            torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-6)
    for block in records.full([1]):
        rest = np.array([0, 1, 3, 4, 5, 6])
        expected = terms_by_loop(problem, (data[1][0][rest], data[1][1][rest]), [point]).sum(0)
        torch.testing.assert_close(clipped_sum(problem, block, [point], None)[0], expected)


def test_only_chains_of_known_layers_are_taken_layer_by_layer():
    for name, problem in NETWORKS.items():
        expected = (
            network.layerwise
            if name
            in {"mlp", "pairs", "pairs of squared ReLU", "regression", "cnn", "places", "bias before matrix"}
            else network.together
        )
        assert network.strategy(problem, torch.float64)[0] is expected, name


def test_the_quicker_norm_is_chosen():
    """Of the CNN's convolutions the gradient itself, of a matrix at few places the ghost norm."""

    def kinds(problem):
        x, y = (torch.as_tensor(values) for values in silos_for(problem, [2])[0])
        terms = network.layerwise(problem, torch.float64, points_of(problem, 1))
        return [type(term) for _, term in terms(x, y)]

    assert kinds(NeuralNetwork(784, 10, model=Lenet((1, 28, 28)))) == [Whole, Whole, Ghost, Ghost, Ghost]
    assert kinds(NETWORKS["places"]) == [Whole, Ghost, Ghost]  # 6^2 (p + q) against 10 p q


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...], type[Term]]] = {
    "image, few channels": (nn.Conv2d(3, 5, 3), (3, 9, 8), Whole),
    "small image, many channels": (nn.Conv2d(40, 30, 3, padding=1), (40, 2, 3), Ghost),
    "one place": (nn.Conv2d(6, 7, 4), (6, 4, 4), Ghost),
    "strides and no bias": (nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), bias=False), (4, 11, 9), Whole),
    "matrix at many places": (nn.Linear(4, 3), (20, 4), Whole),
    "matrix at few places": (nn.Linear(50, 40), (3, 50), Ghost),
    "matrix": (nn.Linear(12, 9), (12,), Ghost),
}


@pytest.mark.parametrize("name", LAYERS)
@every_statistic
def test_a_layers_norms_are_those_of_each_records_own_gradient(name, num_points):
    """Each way to the norm, of layers whose sizes decide for it: against autograd, record by record."""
    module, shape, way = LAYERS[name]
    layer = Layer(type(module), "", tuple(dict(module.named_parameters())), numbers_of(module))
    captures, terms = [], []
    rng = torch.Generator().manual_seed(0)
    for _ in range(num_points):
        sizes = {name: value.shape for name, value in module.named_parameters()}
        own = {k: torch.randn(size, dtype=torch.float64, generator=rng) for k, size in sizes.items()}
        x = torch.randn(8, *shape, dtype=torch.float64, generator=rng)
        matrix = Matrix(layer, *own.values())
        outputs = layer(x, own)
        seen = matrix.rounded(x)
        torch.testing.assert_close(matrix.outputs(seen, matrix.inputs(seen)), outputs, rtol=1e-6, atol=1e-5)
        slopes = torch.randn(outputs.shape, dtype=torch.float64, generator=rng)
        captures.append(Capture(matrix.inputs(seen), matrix.rounded(slopes)))
        wanted = [value.requires_grad_() for value in own.values()]
        rows = [
            torch.autograd.grad(layer(x[i : i + 1], own), wanted, slopes[i : i + 1]) for i in range(len(x))
        ]
        terms.append(torch.stack([torch.cat([part.flatten() for part in row]) for row in rows]))
    term = term_of(matrix, captures)
    assert type(term) is way
    expected = terms[0] if num_points == 1 else terms[0] - terms[1]
    torch.testing.assert_close(term.square.sqrt(), expected.norm(dim=1), rtol=1e-6, atol=0)
    weight = torch.linspace(0, 1, 8, dtype=torch.float64).view(2, 4)
    summed = torch.cat(list(added(term, weight, own).values()), 1)
    by_hand = (weight[:, :, None] * expected.view(2, 4, -1)).sum(1)
    torch.testing.assert_close(summed, by_hand, rtol=1e-6, atol=1e-5)


def added(term: Term, weight: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weighted sums of a term, (silos, size) each."""
    found = {k: torch.zeros(len(weight), own.numel(), dtype=torch.float64) for k, own in parameters.items()}
    term.add(weight, found, "")
    return found


@pytest.mark.parametrize("way", ["ghost", "direct", "direct, float32"])
@pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-9, 1e-6])
def test_a_gradient_whose_places_cancel_is_never_taken_for_shorter_than_it_is(way, gap):
    """B^T A of almost opposite parts: the ghost norm loses all its digits, the summed term does not; a
    gradient made in float32 is measured and added as the numbers that it then has.
    """
    rng = torch.Generator().manual_seed(0)
    a = 1e8 * torch.randn(50, 1, 12, dtype=torch.float64, generator=rng)
    b = torch.randn(50, 1, 9, dtype=torch.float64, generator=rng)
    a, b = torch.cat([a, a * (1 + gap)], 1), torch.cat([b, -b], 1)
    made = (a.float(), b.float()) if way.endswith("float32") else (a, b)
    term = Ghost([(a, b)], None) if way == "ghost" else _direct([made], bias=False)
    bound = term.square.sqrt()
    one_each = torch.eye(50, dtype=torch.float64)
    shapes = {"weight": torch.zeros(9, 12)}
    summed = torch.cat([added(term, row.view(1, 50), shapes)["weight"] for row in one_each])
    assert bool((summed.norm(dim=1) <= bound * (1 + 1e-9)).all())


HUGE = [1e11, 3e38, np.inf, np.nan]
CLIP, N = 0.05, 3
ROUNDS = 600


def replacements(problem: NeuralNetwork, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, float]]:
    d = problem.num_features
    for size in HUGE:
        yield rng.choice([-1.0, 1.0], d) * size, 1.0
    yield np.concatenate([[1e300], np.ones(d - 1)]), 0.0
    yield np.zeros(d), 0.0
    yield np.ones(d), np.nan
    yield rng.uniform(0, 8, d), 1.0
    yield -rng.uniform(0, 8, d), 0.0


@pytest.mark.parametrize(
    ("name", "batch"),
    [*((name, Full()) for name in NETWORKS), ("mlp", Subsample(0.5)), ("mlp", Poisson(0.4))],
)
@every_statistic
def test_replacing_a_record_moves_the_answer_by_at_most_2c_over_k(name, num_points, batch):
    """Every record of a silo against every replacement, on the same draws of the batch, without noise."""
    problem = NETWORKS[name]
    points = tuple(points_of(problem, num_points))
    statistic = "gradient" if num_points == 1 else "gradient_difference"

    def half(w, ask, memory):
        return {"g": ask(Query(statistic, points, CLIP, batch))}

    (silo,) = silos_for(problem, [N], seed=4)
    rng, silos = np.random.default_rng(3), [silo]
    for i in range(N):
        for record, target in replacements(problem, rng):
            x, y = silo[0].copy(), silo[1].copy()
            x[i], y[i] = record, target
            silos.append((x, y))
    rounds = 1 if batch == Full() else 4
    zeros = [torch.zeros(problem.dimension, dtype=torch.float64)] * rounds
    answers = alike(silos, problem, scripted(half, rounds), *zeros)
    assert answers.isfinite().all()
    torch.testing.assert_close(alike([silo], problem, scripted(half, rounds), *zeros), answers[:, :1])
    largest = float((answers - answers[:, :1]).norm(dim=-1).max())
    sensitivity = 2 * CLIP / divisor(batch, N)
    assert 0.2 * sensitivity <= largest <= sensitivity * (1 + 1e-9)


@pytest.mark.parametrize("name", ["mlp", "cnn", "tied layers"])
def test_a_record_of_the_opposite_gradient_moves_the_answer_by_all_of_2c_over_k(name):
    """The bound is met: a divisor or a clip that were twice too careful would pass the test above."""
    problem = NETWORKS[name]
    (silo,) = silos_for(problem, [N])
    point = torch.zeros(problem.dimension, dtype=torch.float64)
    *_, bias = (key for key, shape in problem.shapes.items() if shape == (problem.num_outputs,))
    problem.parameters(point)[bias][:2] = 50  # classes 0 and 1 are as likely, no other is

    def answer(label):
        data = silo[0], np.array([label, *silo[1][1:]])
        gate = open_gate([data], problem, scripted(asking(clip=CLIP)), epsilon=np.inf)
        return gate.answer(0, {"w": point})["g"][0]

    moved = float((answer(0.0) - answer(1.0)).norm())
    assert moved == pytest.approx(2 * CLIP / N, rel=1e-5)


@every_network
@pytest.mark.parametrize("clip", [None, 0.3], ids=repr)
def test_what_is_not_finite_counts_as_zero_and_spoils_no_other_record(name, clip):
    problem = NETWORKS[name]
    (silo,) = silos_for(problem, [6])
    points = points_of(problem, 1)
    without = np.delete(silo[0], 2, 0), np.delete(silo[1], 2)
    expected = sums(problem, [without], points, clip)
    for bad in (np.nan, np.inf, 1e13):
        x = silo[0].copy()
        x[2, 0] = bad
        torch.testing.assert_close(sums(problem, [(x, silo[1])], points, clip), expected)


def test_activations_that_overflow_inside_the_network_count_as_zero():
    """Features and point are within their limits; their products through five layers are not."""
    problem = NeuralNetwork(5, 3, model=Mlp((4, 4, 4, 4)))
    (silo,) = silos_for(problem, [4])
    silo[0][1] = 1e11
    point = torch.full((problem.dimension,), 1e6)  # float32: (1e6)^5 x 1e11 overflows
    for clip in (None, 1.0):
        total = sums(problem, [silo], [point], clip, torch.float32)
        assert total.isfinite().all()
        alone = sums(problem, [(silo[0][1:2], silo[1][1:2])], [point], clip, torch.float32)
        assert not alone.any()


def test_a_record_that_the_module_cannot_be_applied_to_counts_as_zero():
    """A token outside the vocabulary raises: whether a silo answers must not depend on it."""
    problem = NETWORKS["embedding and layer norm"]
    data = silos_for(problem, [6, 6])
    points = points_of(problem, 1)
    expected = sums(problem, [data[0], (np.delete(data[1][0], 4, 0), np.delete(data[1][1], 4))], points, 0.3)
    data[1][0][4, 1] = 12.0
    torch.testing.assert_close(sums(problem, data, points, 0.3), expected)


@every_statistic
def test_no_tensor_of_records_times_parameters_is_held(num_points):
    """2,000 records x 42,610 parameters would be 682 MB."""
    problem = NeuralNetwork(200, 10, model=Mlp((200,)))
    data, points = silos_for(problem, [1000, 1000]), points_of(problem, num_points)
    (block,) = Records(data, problem, torch.float64).full([0, 1])
    clipped_sum(problem, block, points, 1.0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        clipped_sum(problem, block, points, 1.0)
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    steps = [event.nbytes() for event in events if event.name() == "[memory]"]
    peak = max(np.cumsum(steps))
    assert 1e5 < peak < 8 * num_points * 1e7


@every_network
def test_chunks_change_nothing(name, monkeypatch):
    problem = NETWORKS[name]
    data, points = silos_for(problem, [11, 10, 9]), points_of(problem, 2)
    expected = sums(problem, data, points, 0.3)
    make, _ = network.strategy(problem, torch.float64)
    largest = []

    def recorded(*given):
        terms = make(*given)

        def counted(x, y):
            largest.append(len(x))
            return terms(x, y)

        return counted

    for width in (1, 4, 25):
        monkeypatch.setattr(network, "strategy", lambda *_: (recorded, width))  # noqa: B023
        largest.clear()
        torch.testing.assert_close(sums(problem, data, points, 0.3), expected, rtol=1e-8, atol=1e-10)
        assert 0 < max(largest) <= width


def test_training_without_noise_reaches_a_stationary_point():
    problem = NeuralNetwork(4, 3, Composite(l2=0.03), model=Imported("support.network_modules:smooth"))
    data = [(x / 4 - 1, np.floor(3 * x[:, 0] / 8)) for x, _ in silos_for(problem, [20, 30], seed=1)]
    algorithm = ProxSGD(ROUNDS, 1.5, 1e3)
    gate = open_gate(data, problem, algorithm, epsilon=np.inf, mechanism="none")
    public = public_of([20, 30])
    w = drive(gate, algorithm, problem, public, schedule(2, None, [False] * ROUNDS, 0, 0))[-1].answer
    mean = torch.cat([terms_by_loop(problem, silo, [w]) for silo in data]).mean(0)
    assert float((mean + problem.public_gradient(w)).norm()) < 1e-6
    assert float(w.norm()) > 1  # zero is stationary too, and says nothing
