"""What a job does with the format: it reads, it streams, it writes. Each line ends with a number of entries."""

import tempfile


def read(spark, url, say, name="read", streams="orders"):
    rows = spark.read.format("redis_streams").options(url=url, streams=streams).load()
    say(name, rows.count())
    return rows


def run(spark, url, say):
    rows = read(spark, url, say)
    with tempfile.TemporaryDirectory() as place:
        source = spark.readStream.format("redis_streams").options(url=url, streams="orders", startingOffsets="earliest")
        sink = source.load().selectExpr("data").writeStream.format("redis_streams").options(url=url, stream="streamed")
        query = sink.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()
        if query.exception() is not None:
            raise query.exception()
    read(spark, url, say, "streamed", "streamed")
    rows.selectExpr("data").write.format("redis_streams").options(url=url, stream="copy").mode("append").save()
    read(spark, url, say, "written", "copy")
