"""Structural figures of the project, counted alike: `python -m benchmarks.structure`, in a checkout.

The product is fedsim, silos, server and shuffler. A line of code has a token that is no comment or docstring.
The trusted closure is what a new process has loaded of the product once a vault has answered a round of each
sampler and statistic, for records and persons, of a linear model; what networks
load on top, and sums over silos (their mechanisms and the sealing of reports), are figures of their own. A
plain silo's are all lines of what `silos.front.service` and `Silo.open` load; those of a daemon and of two
commands, of quickstart, likewise. The rest is read off the
sources: files with "person" or "one_sided"; `isinstance` of a mechanism outside its class's file; the longest
function; types with three annotated fields or more; `getattr` by a constant name; all lines.
"""

import ast
import io
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = ("fedsim", "silos", "server", "shuffler")
_THIN = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}


def code_lines(source: str) -> int:
    """How many lines of a file's text are code."""
    docs = set[int]()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if isinstance(each, ast.Expr) and isinstance(getattr(each.value, "value", None), str):
                docs |= set(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return len({n for t in tokens if t.type not in _THIN for n in range(t.start[0], t.end[0] + 1)} - docs)


def lines(files: Iterable[Path]) -> int:
    """How many lines files have in all."""
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files)


def loaded(folder: Path, what: str) -> set[Path]:
    """Files of the product that a new process has loaded (`benchmarks.structure_loads`)."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.structure_loads", str(folder), what]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(map(Path, done.stdout.splitlines()[-1].split("\t")))


def sources(*folders: str) -> dict[Path, str]:
    """The text of every Python file below folders of the checkout."""
    files = (file for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))
    return {file: file.read_text(encoding="utf-8") for file in files}


def mechanisms(trees: Iterable[ast.Module]) -> set[str]:
    """Names of the classes that derive from `Mechanism`."""
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found, more = {"Mechanism"}, True
    while more:
        more = {name for name, own in bases.items() if own & found} - found
        found |= more
    return found


def of_loaded() -> Iterator[tuple[str, int, str]]:
    """(figure, number, remark) of what processes load."""
    with tempfile.TemporaryDirectory() as temporary:
        folders = iter(Path(temporary, str(number)) for number in range(9))

        def code(files: Iterable[Path]) -> int:
            return sum(code_lines(file.read_text(encoding="utf-8")) for file in files)

        linear = loaded(next(folders), "linear")
        yield "trusted closure, linear models: lines of code", code(linear), f"{len(linear)} files"
        for which in ("networks", "sums"):
            more = loaded(next(folders), which) - linear
            yield f"  {which} on top", code(more), f"{len(more)} files"
        loaded(folder := next(folders), "enrolled")
        silo = loaded(folder, "opened")
        yield "a plain silo after open: lines", lines(silo), f"{len(silo)} files"
        for what in ("daemon", "simulate", "release"):
            files = loaded(next(folders), what)
            yield f"{what}: lines", lines(files), f"{len(files)} files"


def of_sources() -> Iterator[tuple[str, int, str]]:
    """(figure, number, remark) of what the sources say."""
    product = sources(*PRODUCT)
    trees = {file: ast.parse(text) for file, text in product.items()}
    nodes = [(file, node) for file, tree in trees.items() for node in ast.walk(tree)]
    privacy = {file: tree for file, tree in trees.items() if file.parent.name == "privacy"}
    own = mechanisms(privacy.values())
    classes = {node.name: file for file, node in nodes if isinstance(node, ast.ClassDef) and node.name in own}
    calls = [(file, node) for file, node in nodes if isinstance(node, ast.Call)]
    kinds = {
        f"{file.stem}: {name}"
        for file, call in calls
        if ast.unparse(call.func) == "isinstance"
        for name in own & {ast.unparse(each).split(".")[-1] for each in ast.walk(call.args[1])}
        if classes[name] != file
    }
    named = [c for _, c in calls if ast.unparse(c.func) == "getattr" and isinstance(c.args[1], ast.Constant)]
    functions = [node for _, node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    longest = max(functions, key=_length)
    types = [node for _, node in nodes if isinstance(node, ast.ClassDef) and _fields(node) >= 3]
    yield "files that mention persons", sum("person" in text.lower() for text in product.values()), ""
    yield "files that ask one_sided", sum("one_sided" in text for text in product.values()), ""
    yield "isinstance of a mechanism elsewhere", len(kinds), ", ".join(sorted(kinds))
    yield "longest function: lines", _length(longest), longest.name
    yield "types with three fields or more", len(types), ""
    yield "getattr with a name", len(named), ""
    yield "product: lines", sum(text.count("\n") for text in product.values()), f"{len(product)} files"
    tests = sources("tests")
    yield "tests: lines", sum(text.count("\n") for text in tests.values()), f"{len(tests)} files"


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _fields(node: ast.ClassDef) -> int:
    own = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    return sum("ClassVar" not in ast.unparse(each.annotation) for each in own)


if __name__ == "__main__":
    for figures in (of_sources(), of_loaded()):
        for figure, number, remark in figures:
            print(f"{figure:<48}{number:>8,}  {remark}")
