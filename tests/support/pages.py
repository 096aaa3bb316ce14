"""What the documents show: commands, files, Python and outputs, and how an output is compared.

A console block is run line by line. `<!-- file: NAME -->` before a block is a file that the commands need;
`<!-- run -->` before a block of Python means that it runs as pasted. A `text` block is an output, of the
command in `<!-- output: COMMAND -->` or of the Python before `<!-- output -->`, or a `<!-- diagram -->`.
`<!-- output of one processor: COMMAND -->` has numbers that may differ elsewhere: `transform` and `pca` are
computed by libraries for the processor, and a last digit of the records keys all of the noise.
"""

import ast
import json
import re
from pathlib import Path

from support.distribution import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md")) + sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("*/README.md"))
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.S)
CONSOLE = re.compile(r"```console\n(.*?)```", re.S)
ELSEWHERE = " of one processor"
OUTPUT = re.compile(rf"<!-- output(?:{ELSEWHERE})?: (.+?) -->\n```text\n(.*?)```", re.S)
PYTHON = re.compile(r"<!-- run -->\n```python\n(.*?)```(?:\s*<!-- output -->\n```text\n(.*?)```)?", re.S)
TEXT = re.compile(r"^(.*)\n```text\n", re.M)

_SHOW = """
def _show(value):
    if value is not None and not hasattr(value, "savefig"):
        print(repr(value))
"""
_RULE = re.compile(r"[─━│╭╮╰╯┌┐└┘-]+")
_VARIES = re.compile(r"\d{8}-\d{6}|\d{4}-\d{2}-\d{2}|\b\d{2}:\d{2}\b|\b[0-9a-f]{8,}\b")
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def text(page: str) -> str:
    """A page's source; `page` is its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def files(source: str) -> dict[str, str]:
    """The files that a page shows, by name."""
    return dict(FILE.findall(source))


def sessions(source: str) -> list[list[str]]:
    """The commands of each console block that has commands of fedsim."""
    blocks = [re.findall(r"^fedsim .*$", block, re.M) for block in CONSOLE.findall(source)]
    return [[line.partition(" #")[0].rstrip() for line in block] for block in blocks if block]


def outputs(source: str) -> dict[str, str]:
    """The output that a page shows of each command."""
    return dict(OUTPUT.findall(source))


def is_of_one_processor(source: str, command: str) -> bool:
    """Whether the numbers that a page shows of a command may be others on another processor."""
    return f"<!-- output{ELSEWHERE}: {command} -->" in source


def disagreement(shown: str, printed: str, numbers: bool = True) -> str | None:
    """The first difference between an output as a page shows it and as it is printed, or None.

    Words are compared in their order, wherever lines break. Numbers agree within 2 % or one unit of the last
    digit shown, or always if `numbers` is false. Times, dates and digests vary. A line `...` stands for any
    omitted lines.
    """
    if not numbers:
        shown, printed = _NUMBER.sub("0", shown), _NUMBER.sub("0", printed)
    words = _words(printed)
    start = 0
    for part in re.split(r"^\.\.\.\n", shown, flags=re.M):
        wanted = _words(part)
        places = range(start, len(words) - len(wanted) + 1)
        scores = [_agreeing(wanted, words[place:]) for place in places]
        best = max(scores, default=0)
        if best < len(wanted):
            near = words[places[scores.index(best)] :][: best + 1] if scores else []
            return f"after {wanted[:best][-8:]} the page shows {wanted[best]!r}, printed is {near[-1:]}"
        start = places[scores.index(best)] + len(wanted)
    return None


def _words(lines: str) -> list[str]:
    return [word for word in _VARIES.sub("#", lines).split() if not _RULE.fullmatch(word)]


def _agreeing(wanted: list[str], words: list[str]) -> int:
    """How many of the first words agree."""
    most = min(len(wanted), len(words))
    return next((index for index in range(most) if not _alike(wanted[index], words[index])), most)


def _alike(shown: str, printed: str) -> bool:
    if _NUMBER.sub("0", shown) != _NUMBER.sub("0", printed):
        return False
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(printed), strict=True)
    return all(_close(*pair) for pair in pairs)


def _close(shown: str, printed: str) -> bool:
    a, b = (float(number.replace(",", "")) for number in (shown, printed))
    mantissa, _, exponent = shown.replace(",", "").partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(a - b) <= max(0.02 * abs(b), 1.001 * unit)


def notebook(path: Path) -> tuple[str, str]:
    """A notebook's code as a script, and the text that its cells show, which the script prints.

    Figures are left out, and so are cells with the tag `varies`: their numbers differ from run to run.
    """
    code, shown = [_SHOW], []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        varies = "varies" in cell["metadata"].get("tags", [])
        if varies or not isinstance(tree.body[-1], ast.Expr):
            code.append(ast.unparse(tree))
        else:
            last = ast.unparse(tree.body.pop())
            code += [ast.unparse(tree), f"_show({last})"]
        for output in [] if varies else cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", [])})
            shown += [] if "image/png" in data else ["".join(data["text/plain"])]
    return "\n".join(code), "\n".join(shown) + "\n"


def write_files(source: str, folder: Path) -> None:
    """Write what a page shows as files into a folder."""
    for name, content in files(source).items():
        (folder / name).write_text(content, encoding="utf-8")
