"""`python -m benchmarks.thesis.audit`: price every theorem's claim; write what `fedsim theorems` shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.thesis.audit import claims, shuffle_claims
from benchmarks.thesis.runs import ROOT
from fedsim.cli.bounds import page

SETTINGS = claims.SETTINGS + shuffle_claims.SETTINGS


def entries(settings: Sequence[claims.Setting] = SETTINGS) -> list[dict[str, Any]]:
    """The theorems' claims with their true costs, as `fedsim theorems --json` prints them."""
    return [_plain(entry) for entry in claims.priced(settings)]


def _plain(entry: claims.Entry) -> dict[str, Any]:
    rows = [asdict(row) | {"fails": row.fails} for row in entry.rows]
    conditions = [
        {"condition": name, "unmet": unmet, "met": not unmet} for name, unmet in entry.conditions.items()
    ]
    stated = {"theorem": entry.title, "setting": entry.numbers, "verdict": entry.verdict}
    return stated | {"slip": entry.slip, "conditions": conditions, "rows": rows}


def main() -> None:
    """Write what the package holds, and the page that is made of it."""
    found = entries()
    packaged, document = ROOT / "fedsim" / "theory" / "audit.json", ROOT / "docs" / "thesis-audit.md"
    packaged.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    document.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
