"""A silo's price of 1,000 rounds on ten parts, round by round: `part_price.py OUT`; writes JSON.

Milliseconds of processor time, [taken, allowed], of what a run costs the account, its whole and each round.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from fedsim.privacy.registry import GAUSSIAN
from fedsim.protocol.batch import Part
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.plan import Ask, Plan, QueryShape, Terms
from silos.vault.admission import admit, price

ROUNDS, PARTS, TIMES, LIMIT = 1_000, 10, 20, 5.0


def main() -> None:
    """Measure; the first time does not count."""
    query = (QueryShape("gradient", 1, 1.0),)
    asks = [(Ask(Part(k / PARTS, (k + 1) / PARTS), query),) for k in range(PARTS)]
    taken = []
    for _ in range(TIMES + 1):
        plan = Plan(tuple(asks[r % PARTS] for r in range(ROUNDS)))
        (admitted,) = admit(plan, [Terms("silo", 1_000, 1.0, 1e-6, range(ROUNDS))], GAUSSIAN, LIMITS)
        before = time.process_time()
        price(plan, admitted, GAUSSIAN).whole  # noqa: B018  it is computed
        taken.append((time.process_time() - before) * 1e3)
    Path(sys.argv[1]).write_text(json.dumps({"price": [taken[1:], [LIMIT] * TIMES]}), encoding="utf-8")


if __name__ == "__main__":
    main()
