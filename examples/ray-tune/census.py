"""The census income data (who earns more than 50,000 a year?), from a folder or a bucket, or synthetic."""

import csv
import io
import os
import random

NUMBERS = ["age", "weight", "education-years", "capital-gain", "capital-loss", "hours"]
WORDS = ["workclass", "education", "marital", "occupation", "relationship", "race", "sex", "country"]
_PLACES = [0, 2, 4, 10, 11, 12], [1, 3, 5, 6, 7, 8, 9, 13]


def load(place, name, *, rows=0):
    """Return rows and labels of `adult.data` or `adult.test` in a folder, `gs://…` or `s3://…`; else synthetic ones."""
    if not place:
        return synthetic(rows or 4000, seed=name)
    return parse(_text(place, name), rows=rows)


def _text(place, name):
    if "://" in place:
        from obstore.store import from_url

        return bytes(from_url(place.rstrip("/")).get(name).bytes()).decode()
    path = os.path.join(place, name)
    if not os.path.exists(path):
        raise SystemExit(f"error: no {name} in {place}\nhint: omit --data to use synthetic data")
    with open(path, encoding="utf-8") as file:
        return file.read()


def parse(text, *, rows=0):
    points, labels = [], []
    for cells in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(cells) != 15:
            continue  # the first line of adult.test, and empty ones
        points.append([float(cells[i]) for i in _PLACES[0]] + [cells[i] for i in _PLACES[1]])
        labels.append(int(cells[14].startswith(">50K")))
        if rows and len(points) == rows:
            break
    return points, labels


def synthetic(rows, *, seed):
    """Return synthetic people whose income depends on age, education, hours, marriage and chance."""
    rng = random.Random(seed)
    points, labels = [], []
    for _ in range(rows):
        age, years, hours = rng.randint(17, 80), rng.randint(5, 16), rng.randint(10, 60)
        married = rng.random() < 0.47
        gain = rng.choice([0] * 11 + [rng.randint(100, 15000)])
        categories = [
            rng.choice(["Private", "State-gov", "Self-emp-inc"]),
            f"{years} years",
            "Married-civ-spouse" if married else rng.choice(["Never-married", "Divorced"]),
            rng.choice(["Sales", "Craft-repair", "Exec-managerial", "Other-service"]),
            rng.choice(["Husband", "Wife"]) if married else "Not-in-family",
            rng.choice(["White", "Black", "Other"]),
            rng.choice(["Male", "Female"]),
            rng.choice(["United-States", "Mexico", "India"]),
        ]
        score = 0.4 * (years - 10) + 0.05 * (hours - 40) + 1.8 * married + gain / 3000 + 0.6 * (categories[3][0] == "E")
        score -= 2.2 + ((age - 48) / 20) ** 2 + rng.gauss(0, 0.7)
        points.append([age, rng.randint(20000, 400000), years, gain, 0, hours, *categories])
        labels.append(int(score > 0))
    return points, labels
