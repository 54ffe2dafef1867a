"""Spark's UnivariateFeatureSelector on a folder of Parquet; runs in an environment with pyspark, without fxdask."""

import argparse
import json
import os
import time
from pathlib import Path

from pyspark.ml.feature import UnivariateFeatureSelector, VectorAssembler
from pyspark.sql import DataFrame, SparkSession

LABEL = "label"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--memory", required=True)
    parser.add_argument("--selected", type=int, required=True)
    return parser.parse_args()


def session(cores: int, memory: str) -> SparkSession:
    """One process that is driver and executor, on loopback, with scratch files in its own working directory."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[{cores}]")
    settings = {
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(Path.cwd()),
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(Path.cwd() / "warehouse"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def vectors(spark: SparkSession, path: Path) -> DataFrame:
    """All columns but the label as one vector column."""
    frame = spark.read.parquet(str(path))
    features = [name for name in frame.columns if name != LABEL]
    return VectorAssembler(inputCols=features, outputCol="features").transform(frame).select("features", LABEL)


def main() -> None:
    options = arguments()
    spark = session(options.cores, options.memory)
    # The first file warms the JVM up, and gives the p-values, which the selector itself does not tell.
    first = vectors(spark, min(options.folder.glob("*.parquet")))
    test = spark.sparkContext._jvm.org.apache.spark.ml.stat.ANOVATest
    row = test.test(first._jdf, "features", LABEL, False).head()
    p_values, f_values = (list(row.getAs(name).toArray()) for name in ("pValues", "fValues"))
    started = time.perf_counter()
    selector = UnivariateFeatureSelector(featuresCol="features", labelCol=LABEL, selectionMode="numTopFeatures")
    selector = selector.setFeatureType("continuous").setLabelType("categorical")
    model = selector.setSelectionThreshold(options.selected).fit(vectors(spark, options.folder))
    seconds = time.perf_counter() - started
    result = {
        "seconds": seconds,
        "selected": list(model.selectedFeatures),
        "p_values": p_values,
        "f_values": f_values,
        "version": spark.version,
        "peak_bytes": peak_bytes(spark),
    }
    print(json.dumps(result))
    spark.stop()


def peak_bytes(spark: SparkSession) -> int:
    """The largest resident memory that the Java process had."""
    process = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
