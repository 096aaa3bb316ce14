"""Parts of other distributions: an installed one is found, and a bad one is named."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedsim.common.errors import InputError
from fedsim.common.plugins import entry_points, extended

GROUP = "fedsim.test_parts"


def _distribution(folder: Path, name: str, lines: str, group: str = GROUP) -> None:
    """What an installer leaves on the path, without one."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_without_distributions_there_is_nothing() -> None:
    assert entry_points(GROUP) == {}
    assert extended(GROUP, {"mine": int}, object) == {"mine": int}


def test_entry_points_are_loaded_under_their_names(folder: Path) -> None:
    _distribution(folder, "theirs", "b = fractions:Fraction\na = decimal:Decimal")
    assert [(name, kind.__name__) for name, kind in entry_points(GROUP).items()] == [  # type: ignore[attr-defined]
        ("a", "Decimal"),
        ("b", "Fraction"),
    ]
    assert list(extended(GROUP, {"mine": int}, object)) == ["mine", "a", "b"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("a = no_such_module:X", ["no_such_module", "ModuleNotFoundError"]),
        ("a = decimal:Nothing", ["decimal:Nothing", "AttributeError"]),
        ("mine = decimal:Decimal", ["built in", "another"]),
        ("a = decimal:getcontext", ["class derived from Number"]),
        ("a = fractions:re", ["class derived from Number"]),
    ],
)
def test_a_bad_entry_point_names_its_distribution(folder: Path, lines: str, expected: list[str]) -> None:
    from numbers import Number

    _distribution(folder, "theirs", lines)
    with pytest.raises(InputError) as caught:
        extended(GROUP, {"mine": int}, Number)
    for text in [f"{GROUP}:{lines.split()[0]}", "distribution theirs", *expected]:
        assert text in str(caught.value)


def test_two_distributions_with_one_name_are_an_error(folder: Path) -> None:
    _distribution(folder, "first", "a = decimal:Decimal")
    _distribution(folder, "second", "a = fractions:Fraction")
    with pytest.raises(InputError, match="distribution second: name taken twice"):
        entry_points(GROUP)


PLUGIN = """
from dataclasses import dataclass
from fedsim.problems.glm import LinearRegression

@dataclass(frozen=True)
class Doubled(LinearRegression):
    \"\"\"Twice the squared error.\"\"\"

    def coefficient(self, scores, target, inverse_norm):
        return 2 * (scores - target)
"""


@pytest.mark.parametrize(
    ("name", "code"), [pytest.param("doubled", 0, marks=pytest.mark.slow), ("hinge_loss", 2)]
)
def test_a_problem_of_another_distribution_can_be_named_and_a_clash_is_one_line(
    tmp_path: Path, name: str, code: int
) -> None:
    _distribution(tmp_path, "theirs", f"{name} = plugin_module:Doubled", "fedsim.problems")
    (tmp_path / "plugin_module.py").write_text(PLUGIN)
    run = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from fedsim.cli.main import app; app(['list'])"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    if code == 0:
        assert "doubled" in done.stdout
        assert "Twice the squared error." in done.stdout
    else:
        assert done.stderr.startswith("error: entry point fedsim.problems:hinge_loss")
        assert "distribution theirs" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
