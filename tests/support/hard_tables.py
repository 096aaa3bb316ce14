"""Tables with the difficulties that real ones have, alike every time: missing markers, uneven classes, heavy
tails, ranges that nobody rounded, record numbers, dates and free text."""

from pathlib import Path

import numpy as np
import pandas as pd

SILOS = ("north", "south", "east", "west", "middle")


def clinic(records: int = 1500) -> pd.DataFrame:
    """Heart disease: 15 % are ill; NA and ? mean no value; cigarettes and a lab value have long tails."""
    rng = np.random.default_rng(11)
    age = rng.uniform(31.7, 70.2, records)
    male = rng.integers(0, 2, records)
    smoked = np.where(rng.random(records) < 0.5, 0, rng.poisson(18, records))
    pressure = rng.normal(95 + 0.7 * age, 14, records)
    glucose = np.exp(rng.normal(4.4, 0.12, records) + (rng.random(records) < 0.004) * 1.3)
    marker = np.exp(rng.normal(1.0, 1.3, records))
    score = 0.09 * (age - 50) + 0.7 * male + 0.03 * (pressure - 130) + 0.03 * (smoked - 9)
    score += 0.5 * (np.log(marker) - 1)
    ill = score + rng.logistic(0, 0.7, records) > np.quantile(score, 0.88)
    table = pd.DataFrame(
        {
            "patient_id": rng.permutation(records) + 100_001,
            "hospital": rng.choice(SILOS, records),
            "admitted": "2019-03-01",
            "age": age.round(2).astype(str),
            "male": male,
            "cigarettes": smoked.astype(str),
            "sysBP": pressure.round(1).astype(str),
            "glucose": glucose.round(0).astype(int).astype(str),
            "marker": marker.round(3),
            "remark": [f"seen in room {k % 400}, {k}" for k in range(records)],
            "ill": np.where(ill, "yes", "no"),
        }
    )
    table.loc[rng.random(records) < 0.03, "cigarettes"] = "NA"
    table.loc[rng.random(records) < 0.09, "glucose"] = "?"
    table.loc[5, "admitted"] = "2019-04-17"
    return table


def houses(records: int = 1200) -> pd.DataFrame:
    """House prices: an outlier in rooms, population with a long tail, zeros and few large values in sold."""
    rng = np.random.default_rng(12)
    income = np.exp(rng.normal(1.2, 0.45, records))
    rooms = rng.normal(5.4, 1.0, records).clip(1)
    rooms[:3] = (141.9, 132.5, 59.8)
    people = np.exp(rng.normal(7.0, 0.8, records))
    sold = np.where(rng.random(records) < 0.9, 0.0, np.exp(rng.normal(8.0, 1.2, records)))
    price = 0.5 + 0.42 * income + 0.1 * rooms.clip(1, 9) + 0.05 * (sold > 0) + rng.normal(0, 0.3, records)
    return pd.DataFrame(
        {
            "MedInc": income.round(4),
            "AveRooms": rooms.round(6),
            "Population": people.round(0).astype(int),
            "Sold": sold.round(0).astype(int),
            "Latitude": rng.uniform(32.54, 41.95, records).round(2),
            "Price": price.round(5),
        }
    )


def written(table: pd.DataFrame, place: Path) -> Path:
    """The table as a CSV file."""
    table.to_csv(place, index=False)
    return place
