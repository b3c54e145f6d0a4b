"""The files in deploy/: every metric and label that they ask for is served, every command can be given, manifests fit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock.cli.app import app
from penstock.cli.worker_metrics import serve
from penstock.events import Event, EventName
from penstock.spark.pipeline.metrics import PipelineMetrics
from penstock.sync import ConsumerConfig, RedisMessageQueue, StreamClient, StreamConsumer, StreamProducer
from penstock.sync.ops import Inspector, Sampler
from penstock.sync.ops.metrics import InspectorCollector
from penstock.sync.tasks import RedisTaskQueue, Task
from tests.helpers.missing import usual_server
from tools import cli_reference

DEPLOY = Path(__file__).parents[2] / "deploy"
METRIC = re.compile(r"\b(?:penstock|queue)_[a-z_]+\b")
LABEL = re.compile(r"""(\w+) *(?:=~|!~|!=|=) *["']""")
BY = re.compile(r"\bby *\(([^)]*)\)")
SHOWN = re.compile(r"\{\{ *(?:\$labels\.)?(\w+) *\}\}")
EXCLUDED = re.compile(r"""unless ignoring \(([^)]*)\) label_replace\((\w+), "(\w+)", "\$1", "(\w+)", "\(\.\*\)"\)""")
COMMANDS = dict(cli_reference.leaves(typer.main.get_command(app)))


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def manifests() -> list[dict[str, Any]]:
    return [document for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for document in documents(path)]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DEPLOY / "grafana/penstock.json").read_text())["panels"]
    return found


def questions() -> Iterator[tuple[str, str, str]]:
    """Yields every PromQL expression: the place where it is, the expression, and the text that shows its labels."""
    for panel in panels():
        for asked in panel["targets"]:
            yield f"panel {panel['title']}", asked["expr"], asked["legendFormat"]
    for group in documents(DEPLOY / "prometheus/alerts.yml")[0]["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"], rule["annotations"]["summary"]
    for manifest in manifests():
        for trigger in manifest["spec"].get("triggers", ()):
            yield manifest["kind"], trigger["metadata"]["query"], ""


def fail(message: object) -> None:
    raise ValueError("no address")


def fill(client: StreamClient) -> None:
    """Puts something of every part onto a server."""
    StreamProducer(client, "orders").push({"n": 1})
    config = ConsumerConfig(group="shop", max_deliveries=1, block_ms=10)
    consumer = StreamConsumer(client, "orders", config, message_handler=fail)
    consumer.run_once()
    consumer.close()
    client.call("", "XGROUP", "CREATE", "orders", "spark-query", "$")
    mails = RedisMessageQueue("mails", client=client)
    mails.publish({"to": 1})
    with mails.process_message():  # a queue is known by the group that reads it
        pass
    client.call("", "XGROUP", "CREATE", "svc-input", "svc-group", "0", "MKSTREAM")
    tasks = RedisTaskQueue(client, "jobs")
    for task in ("done", "dead"):
        tasks.enqueue(Task(kind="render", id=task))
        tasks.pop()
    tasks.ack("done")
    tasks.dead_letter("dead", "fatal")
    tasks.enqueue(Task(kind="render"))


@pytest.fixture(scope="module")
def served() -> dict[str, set[str]]:
    """Scrapes an exporter and a pipeline over HTTP; returns the labels of every metric that has a number."""
    pipeline = PipelineMetrics()
    batch = {"rows": 1, "lag": 0, "seconds": 0.1, "eta_s": 0.0}
    events = {
        EventName.BATCH_COMMITTED: batch,
        EventName.RULE_BROKEN: {"rule": "positive", "action": "warn", "count": 1},
        EventName.TRYING_AGAIN: {},
        EventName.FAILED: {},
    }
    for name, fields in events.items():
        pipeline(Event(name, "orders", "revenue", fields))
    server = usual_server().server()
    server.start()
    try:
        with StreamClient.from_url(server.unix_url) as client:
            fill(client)
            sampler = Sampler(Inspector(client))
            for _ in range(2):  # rates are taken between two
                sampler.sample()
            http, thread = serve("127.0.0.1", 0, InspectorCollector(sampler), pipeline)
            with urllib.request.urlopen(f"http://127.0.0.1:{http.server_port}/metrics", timeout=60) as reply:
                text = reply.read().decode()
            http.shutdown()
            thread.join(60)
            assert not thread.is_alive(), "the server did not stop"
            http.server_close()
    finally:
        server.stop()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize(("place", "expression", "shown"), [pytest.param(*each, id=each[0]) for each in questions()])
def test_every_metric_that_is_asked_for_is_served_with_its_labels(
    served: dict[str, set[str]], place: str, expression: str, shown: str
) -> None:
    named = set(METRIC.findall(expression))
    assert named, f"{place} asks for nothing of ours"
    assert named <= served.keys()
    labels = {*LABEL.findall(expression), *SHOWN.findall(shown)}
    for grouped in BY.findall(expression):
        labels |= {label.strip() for label in grouped.split(",")}
    for metric in named - {excluded for _, excluded, *_ in EXCLUDED.findall(expression)}:
        assert labels <= served[metric], f"{place} asks for labels that {metric} does not have"


def test_readers_by_ids_are_told_from_groups_that_are_late(served: dict[str, set[str]]) -> None:
    rules = {
        rule["alert"]: rule["expr"] for rule in documents(DEPLOY / "prometheus/alerts.yml")[0]["groups"][0]["rules"]
    }
    for alert in ("PenstockUnreadTooOld", "PenstockBacklogGrows"):
        [(ignored, reader, label, source)] = EXCLUDED.findall(rules[alert])
        others = {reader, "penstock_group_drain_seconds", "penstock_group_lag_is_exact"}
        [group] = set(METRIC.findall(rules[alert])) - others
        # Series exclude one another if their labels are the same but for those that are ignored.
        assert served[reader] | {label} == served[group] | {each.strip() for each in ignored.split(",")}
        assert source in served[reader]


@pytest.mark.parametrize(
    "part", ["penstock_queue_", "penstock_reader_", "penstock_pipeline_", "penstock_tasks", "queue_"]
)
def test_every_part_has_panels(served: dict[str, set[str]], part: str) -> None:
    asked = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    assert {name for name in METRIC.findall(asked) if name.startswith(part)} & served.keys()


def test_grafana_is_told_where_the_numbers_and_the_dashboard_are() -> None:
    services = documents(DEPLOY / "compose.yml")[0]["services"]
    inside = {}
    for volume in services["grafana"]["volumes"]:
        outside, path, mode = volume.split(":")
        assert (DEPLOY / outside).exists()
        assert mode == "ro"
        inside[path] = DEPLOY / outside
    provisioning = inside["/etc/grafana/provisioning"]
    [source] = documents(provisioning / "datasources/prometheus.yml")[0]["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert "prometheus" in services
    [provider] = documents(provisioning / "dashboards/penstock.yml")[0]["providers"]
    assert f"{provider['options']['path']}/penstock.json" in inside


def test_prometheus_scrapes_the_exporter_and_pipelines() -> None:
    services = documents(DEPLOY / "compose.yml")[0]["services"]
    [config] = documents(DEPLOY / "prometheus/prometheus.yml")
    exporter, pipelines = [job["static_configs"][0]["targets"][0] for job in config["scrape_configs"]]
    pipeline_host, pipeline_port = pipelines.split(":")
    assert f"{pipeline_host}:host-gateway" in services["prometheus"]["extra_hosts"]
    assert f"--metrics-port {pipeline_port} " in (DEPLOY.parent / "docs/how-to/monitor.md").read_text()
    host, port = exporter.split(":")
    [option] = [each for each in COMMANDS[("exporter",)].params if each.name == "port"]
    assert (host in services, int(port)) == (True, option.default)
    assert all((DEPLOY / "prometheus" / name).is_file() for name in config["rule_files"])


def test_compose_names_what_exists_and_shows_no_secret() -> None:
    [compose] = documents(DEPLOY / "compose.yml")
    services = compose["services"]
    for name, service in services.items():
        assert ("image" in service) != ("build" in service), name
        assert set(service.get("depends_on", ())) <= services.keys()
        assert "token" not in " ".join(service.get("command", ())).lower()
        if "build" in service:
            context = DEPLOY / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")
            assert service["environment"]["PENSTOCK_URL"] == "redis://redis:6379"
        for volume in service.get("volumes", ()):
            outside = volume.split(":")[0]
            assert (DEPLOY / outside).exists() if outside.startswith(".") else outside in compose["volumes"]
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")  # to open them to others is a decision
    [option] = [each for each in COMMANDS[("dashboard",)].params if each.name == "token"]
    assert option.envvar in services["dashboard"]["environment"]


@pytest.mark.rotates
def test_the_image_is_built_from_files_that_suffice(tmp_path: Path) -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split("\n")
    for name in (line[1:] for line in ignored if line.startswith("!")):
        copy = shutil.copytree if (DEPLOY.parent / name).is_dir() else shutil.copy
        copy(DEPLOY.parent / name, tmp_path / name)
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "built"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    [wheel] = (tmp_path / "built").iterdir()
    with zipfile.ZipFile(wheel) as packed:
        assert {"penstock/cli/app.py", "penstock/dashboard/static/dashboard.js"} <= set(packed.namelist())


def test_every_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    rules = documents(DEPLOY / "prometheus/alerts.yml")[0]["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all(rule["labels"]["severity"] in {"page", "ticket"} and rule["annotations"]["summary"] for rule in rules)


def test_panels_have_a_place_of_their_own() -> None:
    found = panels()
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found}) == len(found)
    assert len({panel["id"] for panel in found}) == len(found)
    assert all(panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for panel in found)


def test_every_container_runs_a_command_that_exists() -> None:
    services = documents(DEPLOY / "compose.yml")[0]["services"]
    ours = [service["command"] for service in services.values() if "build" in service]
    for manifest in manifests():
        containers = manifest["spec"].get("template", {}).get("spec", {}).get("containers", [])
        ours += [container["args"] for container in containers]
    assert len(ours) == 4
    for words in ours:
        COMMANDS[(words[0],)].make_context(words[0], words[1:]).close()


VERSIONS = {"Deployment": "apps/v1", "Service": "v1", "ScaledObject": "keda.sh/v1alpha1"}


# Of the strict schemas of kubernetes-json-schema (Apache 2.0), what these kinds refer to, without descriptions.
SCHEMAS = Path(__file__).parent / "vendor/kubernetes-1.37.json"
# Written from the reference of KEDA 2: what its ScaledObject takes with a trigger on Prometheus.
SCALED_OBJECT = Path(__file__).parent / "scaled_object.json"


@pytest.mark.parametrize(
    "manifest",
    manifests(),
    ids=lambda each: f"{each['kind']} {each['metadata']['name']}",
)
def test_manifests_are_what_the_api_of_kubernetes_takes(manifest: dict[str, Any]) -> None:
    schemas = json.loads(SCHEMAS.read_text())
    schemas["$defs"] |= json.loads(SCALED_OBJECT.read_text())["$defs"]
    kinds = {name.rpartition(".")[2]: name for name in schemas["$defs"]}
    validator = jsonschema.Draft202012Validator({**schemas, "$ref": f"#/$defs/{kinds[manifest['kind']]}"})
    assert [error.message for error in validator.iter_errors(manifest)] == []
    manifest["spec"]["replicaz"] = 1
    assert not validator.is_valid(manifest), "the schemas are strict"


def test_manifests_have_what_kubernetes_requires() -> None:
    for each in manifests():
        assert each["apiVersion"] == VERSIONS[each["kind"]]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", each["metadata"]["name"])
        if each["kind"] == "Deployment":
            pod = each["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"]
            for container in pod["containers"]:
                assert {"name", "image", "args", "resources"} <= container.keys()
                assert container["resources"].keys() == {"requests", "limits"}


def test_manifests_name_what_exists() -> None:
    deployments = {each["metadata"]["name"]: each["spec"] for each in manifests() if each["kind"] == "Deployment"}
    labels = {name: spec["template"]["metadata"]["labels"] for name, spec in deployments.items()}
    for name, spec in deployments.items():
        assert spec["selector"]["matchLabels"] == labels[name]
        annotations = spec["template"]["metadata"].get("annotations", {})
        for container in spec["template"]["spec"]["containers"]:
            ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
            scraped = annotations.get("prometheus.io/port")
            assert scraped is None or int(scraped) in ports.values()
            probe = container.get("readinessProbe")
            assert probe is None or probe["httpGet"]["port"] in ports
            for variable in container["env"]:  # one secret for all, which the documentation says how to make
                assert variable["valueFrom"]["secretKeyRef"] == {"name": "penstock", "key": "url"}
    for each in manifests():
        if each["kind"] == "Service":
            [selected] = [name for name, given in labels.items() if each["spec"]["selector"].items() <= given.items()]
            [container] = deployments[selected]["template"]["spec"]["containers"]
            names = {port["name"] for port in container["ports"]}
            assert all(port["targetPort"] in names for port in each["spec"]["ports"])
        if each["kind"] == "ScaledObject":
            assert each["spec"]["scaleTargetRef"]["name"] in deployments
    assert (
        "kubectl create secret generic penstock --from-literal=url="
        in (DEPLOY.parent / "docs/how-to/monitor.md").read_text()
    )


def test_a_worker_stays_for_what_is_due_later() -> None:
    [scaled] = [each["spec"] for each in manifests() if each["kind"] == "ScaledObject"]
    assert 1 <= scaled["minReplicaCount"] < scaled["maxReplicaCount"]
    for trigger in scaled["triggers"]:
        assert trigger["type"] == "prometheus"
        assert {"serverAddress", "query", "threshold"} <= trigger["metadata"].keys()
        assert float(trigger["metadata"]["threshold"]) > 0


def test_kubernetes_waits_longer_than_workers_do() -> None:
    [worker] = documents(DEPLOY / "kubernetes/worker.yaml")
    spec = worker["spec"]["template"]["spec"]
    words = spec["containers"][0]["args"]
    assert words[words.index("--grace") + 1] == "45s"
    assert spec["terminationGracePeriodSeconds"] > 45
