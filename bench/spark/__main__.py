"""Runs the Spark benchmark and prints figures and targets."""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from typing import Literal

from bench.report import table
from bench.server import Server
from bench.spark.data import fill
from bench.spark.measures import Subject
from bench.spark.pipeline_sink import PipelineSink
from penstock.spark import session

Direction = Literal["at least", "at most"]


@dataclass(frozen=True)
class Target:
    """A bound on a ratio or a figure."""

    name: str
    direction: Direction
    bound: float

    def is_met(self, value: float) -> bool:
        return round(value, 2) >= self.bound if self.direction == "at least" else round(value, 2) <= self.bound


CORES_ROWS, CORES_READS = 200_000, 5  # such a read takes a fraction of a second: one alone says little
TARGETS = {
    "read": Target("batch read of id and data, of a plain redis-py loop", "at least", 0.8),
    "cores": Target(f"batch read of {CORES_ROWS:,} rows with all cores, of one task", "at least", 1.6),
    "read_cpu": Target("processor time of a row read, all processes, us", "at most", 3.0),
    "typed": Target("JSON into typed columns, of from_json", "at least", 1.5),
    "write": Target("write, of a redis-py pipeline in the same writer", "at least", 3.5),
    "once": Target("time of an exactly-once write, of a plain one", "at most", 1.35),
    "many": Target("time of 1,000 streams, of one stream with as many entries", "at most", 2.0),
    "batch": Target("micro-batch of 10 rows, of Spark's rate source", "at most", 1.6),
}


def measure(subject: Subject, rows: int, streams: int) -> dict[str, float]:
    """Returns the value of every target in one round."""
    found = {"cores": gain_of_cores(subject)}
    loop = subject.plain_loop("orders", rows)
    read = subject.read(rows, "id string, data binary", streams="orders")
    say("plain loop", f"{loop.rate:,.0f}/s")
    say("read", f"{read.rate:,.0f}/s, {read.cpu_us:.2f} us of CPU a row")
    found["read"], found["read_cpu"] = read.rate / loop.rate, read.cpu_us
    typed, parsed = subject.typed("orders", rows), subject.from_json("orders", rows)
    say("typed", f"{typed.rate:,.0f}/s, {typed.cpu_us:.2f} us; from_json {parsed.rate:,.0f}/s, {parsed.cpu_us:.2f} us")
    found["typed"] = typed.rate / parsed.rate
    many = subject.read(streams * (rows // streams), "id string, data binary", streams="many:*", minPartitions=2)
    say(f"{streams} streams", f"{many.rate:,.0f}/s, {many.cpu_us:.2f} us")
    found["many"] = many.wall_s / read.wall_s
    written = rows // 3
    orders = subject.orders(written)
    theirs = subject.write_with_redis_py(orders, written, "out")
    plain = subject.write(orders, written, "out", semantics="at-least-once")
    once = subject.write(orders, written, "out", writeId=f"bench-{id(orders)}", semantics="exactly-once")
    orders.unpersist()
    say("write", f"redis-py {theirs.rate:,.0f}/s, plain {plain.rate:,.0f}/s ({plain.cpu_us:.2f} us of CPU a row)")
    say("exactly once", f"{once.rate:,.0f}/s ({once.cpu_us:.2f} us)")
    found["write"], found["once"] = plain.rate / theirs.rate, once.wall_s / plain.wall_s
    ours_ms, sparks_ms = subject.micro_batch_ms("small", 45), subject.rate_micro_batch_ms(45)
    say("micro-batch", f"{ours_ms:.0f} ms, rate source {sparks_ms:.0f} ms")
    found["batch"] = ours_ms / sparks_ms
    return found


def gain_of_cores(subject: Subject) -> float:
    """Returns how many times as fast a read is with the default tasks as in one."""

    def read(**options: object) -> float:
        return subject.read(CORES_ROWS, "id string, data binary", streams="cores", **options).rate

    rates = [(read(minPartitions=1), read()) for _ in range(CORES_READS)]
    one, many = (statistics.median(each) for each in zip(*rates, strict=True))
    say(f"{CORES_ROWS:,} rows", f"one task {one:,.0f}/s, all cores {many:,.0f}/s")
    return many / one


def say(what: str, figures: str) -> None:
    print(f"  {what:<14} {figures}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    arguments = parser.parse_args()
    rounds: list[dict[str, float]] = []
    with Server() as server:
        print(f"Filling streams with {arguments.rows:,} entries ...", flush=True)
        fill(server.client, ["orders"], arguments.rows)
        fill(server.client, [f"many:{i}" for i in range(arguments.streams)], arguments.rows // arguments.streams)
        fill(server.client, ["small"], 500)
        fill(server.client, ["cores"], CORES_ROWS)
        spark = session("bench", "local[2]", conf={"spark.driver.memory": "2g", "spark.ui.enabled": False})
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(PipelineSink)
        try:
            subject = Subject(server, spark)
            for number in range(arguments.rounds + 1):
                print("Warming up ..." if not number else f"Round {number}", flush=True)
                found = measure(subject, arguments.rows, arguments.streams)
                if number:  # the first one pays for the compiler of Java
                    rounds.append(found)
        finally:
            spark.stop()
    rows = []
    for key, target in TARGETS.items():
        values = [found[key] for found in rounds]
        value = statistics.median(values)
        spread = f"{min(values):.2f} - {max(values):.2f}"
        rows.append(
            [
                target.name,
                f"{target.direction} {target.bound:g}",
                f"{value:.2f}",
                spread,
                "yes" if target.is_met(value) else "NO",
            ]
        )
    print("\n" + table(["target (medians of the rounds)", "bound", "value", "lowest - highest", "met"], rows))
    return int(arguments.strict and any(row[-1] == "NO" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
