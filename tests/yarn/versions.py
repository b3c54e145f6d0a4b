"""What the tests take from Maven: the servers of the Hadoop whose client comes with the Spark of requirements/dev.txt."""

from __future__ import annotations

# YARN and HDFS, with nearly all that they need.
SERVERS = "org.apache.hadoop:hadoop-client-minicluster:3.5.0"
# What is left out of it, and wanted by the ResourceManager.
CRYPTOGRAPHY = "org.bouncycastle:bcprov-jdk18on:1.82"
CERTIFICATES = "org.bouncycastle:bcpkix-jdk18on:1.82"
PACKAGES = (SERVERS, CRYPTOGRAPHY, CERTIFICATES)
# What Spark has itself.
EXCLUDED = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.xerial.snappy:snappy-java",
)
