"""A driver process: `python -m campaign.archive JOB`, JOB in JSON, has hostile entries archived and reads them back."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import redis

from campaign.children import end_with_the_parent
from penstock.spark import session
from tests.hostile.archive import ArchiveCheck

_BATCH_ROWS = 1_000


def main() -> None:
    """Write hostile entries, archive, verify, read, replay and compact them; leave word in the file `told`."""
    end_with_the_parent()
    logging.basicConfig(level=logging.ERROR)
    job = json.loads(sys.argv[1])
    spark = session(conf={"spark.log.level": "ERROR"})
    with redis.Redis(unix_socket_path=job["socket"], protocol=2) as raw:
        check = ArchiveCheck(spark, job["url"], raw, Path(job["root"]), batch_rows=_BATCH_ROWS)
        complaints = check.run(job["seed"], job["count"])
    told = {"complaints": complaints, "entries": len(check.kinds), "good": check.good}
    Path(job["told"]).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
