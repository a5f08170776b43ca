"""Write `fermenter.csv`: 2,000 rows of a simulated fermenter, in the format of a data logger.

    python record.py

Yeast turns sugar into alcohol and heat. A cooler runs at three levels. Sensors add noise.
"""

import csv
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

BATCHES, ROWS_PER_BATCH = 10, 200
STEP = timedelta(minutes=30)
COOLERS = ("off", "half", "full")
ROOM_C = 24.0
TEMPERATURE_NOISE_C, SUGAR_NOISE_G = 0.05, 0.3


def next_state(temperature: float, sugar: float, cooler: str) -> tuple[float, float]:
    """Return temperature (degrees Celsius) and sugar (g per litre) after 30 minutes.

    Args:
        temperature: Temperature before the step.
        sugar: Sugar before the step.
        cooler: Level of the cooler.
    """
    fermented = 0.002 * sugar * max(temperature - 5.0, 0.0) / 15.0
    cooling = {"off": 0.0, "half": 0.35, "full": 0.7}[cooler]
    warmed = 0.9 * fermented + 0.02 * (ROOM_C - temperature)
    return temperature + warmed - cooling, sugar - fermented


def main() -> None:
    """Simulate the batches and write the table beside this script."""
    rng = np.random.default_rng(7)
    rows = []
    for batch in range(1, BATCHES + 1):
        moment = datetime(2025, 3, 1, 8) + (batch - 1) * timedelta(days=7)
        temperature, sugar = float(rng.uniform(16, 24)), float(rng.uniform(120, 200))
        cooler = "off"
        for _ in range(ROWS_PER_BATCH):
            if rng.random() < 0.15:
                cooler = str(rng.choice(COOLERS))
            if temperature < 9.0:
                cooler = "off"
            measured_c = temperature + rng.normal(0, TEMPERATURE_NOISE_C)
            measured_g = sugar + rng.normal(0, SUGAR_NOISE_G)
            measurements = f"{measured_c:.2f}", f"{measured_g:.1f}"
            rows.append([batch, moment.isoformat(), *measurements, cooler])
            temperature, sugar = next_state(temperature, sugar, cooler)
            moment += STEP
    with Path(__file__).with_name("fermenter.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["batch", "time", "temperature_c", "sugar_g", "cooler"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
