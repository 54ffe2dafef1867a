"""Rank the columns of a folder of Parquet files, and keep the ones that tell the classes apart.

    python rank_parquet.py [FOLDER LABEL_COLUMN]

Without arguments it makes a small folder first. The data may be much larger than memory. It needs fxdask[parquet].
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import fxdask

CRITERIA = ["extended_fisher", "kolmogorov_smirnov", "pearson"]
FALSE_DISCOVERIES = 0.01


def make_folder(folder: Path) -> None:
    """Four files of 5,000 rows: three of 30 columns differ in their variance, one in its mean."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for part in range(4):
        failed = rng.random(5_000) < 0.3
        frame = pd.DataFrame(rng.standard_normal((5_000, 30)), columns=[f"sensor_{i:02}" for i in range(30)])
        frame.loc[failed, ["sensor_03", "sensor_11", "sensor_27"]] *= 1.5
        frame.loc[failed, "sensor_20"] += 0.3
        frame["state"] = np.where(failed, "failed", "good")
        frame.to_parquet(folder / f"part-{part}.parquet", index=False)


def main(folder: Path, label: str) -> None:
    """Print the best columns by each criterion, and write all results beside the folder."""
    ranking = fxdask.rank_features(folder, label, CRITERIA)
    for criterion in ranking.criteria:
        print(f"{criterion:20}", *ranking.names[ranking.order(criterion)[:5]])

    table = ranking.to_frame()
    kept = table[table.kolmogorov_smirnov_p_by < FALSE_DISCOVERIES].feature
    print(f"{len(kept)} of {len(table)} columns at a false discovery rate of {FALSE_DISCOVERIES}:", *kept)

    ranking.to_html(folder.with_suffix(".html"))  # one page with densities of the best columns
    ranking.to_parquet(folder.with_suffix(".ranking.parquet"))  # one row for each column


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(Path(sys.argv[1]), sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            make_folder(Path(temporary, "sensors"))
            main(Path(temporary, "sensors"), "state")
