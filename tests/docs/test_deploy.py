"""The files in deploy/: every metric that they ask for exists, every command can be given, manifests fit together."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from penstock.cli.app import app
from penstock.ops import metrics
from tools import cli_reference

DEPLOY = Path(__file__).parents[2] / "deploy"
METRIC = re.compile(r"\b(?:penstock|queue)_[a-z_]+\b")
METRICS = set(METRIC.findall(inspect.getsource(metrics)))
COMMANDS = dict(cli_reference.leaves(typer.main.get_command(app)))


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def manifests() -> list[dict[str, Any]]:
    return [document for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for document in documents(path)]


def questions() -> Iterator[tuple[str, str]]:
    """Yields every PromQL expression, with the place where it is."""
    for panel in json.loads((DEPLOY / "grafana/penstock.json").read_text())["panels"]:
        for asked in panel["targets"]:
            yield f"panel {panel['title']}", asked["expr"]
    for group in documents(DEPLOY / "prometheus/alerts.yml")[0]["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for manifest in manifests():
        for trigger in manifest["spec"].get("triggers", ()):
            yield manifest["kind"], trigger["metadata"]["query"]


@pytest.mark.parametrize(("place", "expression"), [pytest.param(*each, id=each[0]) for each in questions()])
def test_every_metric_that_is_asked_for_exists(place: str, expression: str) -> None:
    named = set(METRIC.findall(expression))
    assert named, f"{place} asks for nothing of ours"
    assert named <= METRICS


def test_every_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    rules = documents(DEPLOY / "prometheus/alerts.yml")[0]["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all(rule["labels"]["severity"] in {"page", "ticket"} and rule["annotations"]["summary"] for rule in rules)


def test_panels_have_a_place_of_their_own() -> None:
    panels = json.loads((DEPLOY / "grafana/penstock.json").read_text())["panels"]
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_container_runs_a_command_that_exists() -> None:
    services = documents(DEPLOY / "compose.yml")[0]["services"]
    ours = [service["command"] for service in services.values() if "build" in service]
    for manifest in manifests():
        containers = manifest["spec"].get("template", {}).get("spec", {}).get("containers", [])
        ours += [container["args"] for container in containers]
    assert len(ours) == 4
    for words in ours:
        COMMANDS[(words[0],)].make_context(words[0], words[1:]).close()


def test_manifests_name_what_exists() -> None:
    deployments = {each["metadata"]["name"]: each for each in manifests() if each["kind"] == "Deployment"}
    labels = {name: each["spec"]["template"]["metadata"]["labels"] for name, each in deployments.items()}
    for name, each in deployments.items():
        assert each["apiVersion"] == "apps/v1"
        assert each["spec"]["selector"]["matchLabels"] == labels[name]
    for each in manifests():
        if each["kind"] == "Service":
            assert each["spec"]["selector"] in labels.values()
        if each["kind"] == "ScaledObject":
            assert each["spec"]["scaleTargetRef"]["name"] in deployments


def test_kubernetes_waits_longer_than_workers_do() -> None:
    [worker] = documents(DEPLOY / "kubernetes/worker.yaml")
    spec = worker["spec"]["template"]["spec"]
    words = spec["containers"][0]["args"]
    assert words[words.index("--grace") + 1] == "45s"
    assert spec["terminationGracePeriodSeconds"] > 45
