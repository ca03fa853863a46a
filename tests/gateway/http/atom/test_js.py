"""Administration as the official JavaScript client sees it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.http.http_house import HttpHouse, http_house

JS = Path(__file__).parents[3] / "js"
FOREVER = "P10675199DT2H48M5.4775807S"

pytestmark = [
    pytest.mark.js,
    pytest.mark.skipif(
        shutil.which("node") is None or not (JS / "node_modules" / "@azure" / "service-bus").is_dir(),
        reason="Node.js 20 and the packages of tests/js are needed: install Node.js, then `make js`",
    ),
]


def administer(house: HttpHouse) -> dict[str, Any]:
    environment = os.environ | {"NODE_EXTRA_CA_CERTS": house.ca}
    command = ["node", str(JS / "administration.mjs"), house.connection_string]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def test_javascript_client_administers_everything(tmp_path: Path) -> None:
    with http_house(tmp_path) as house:
        seen = administer(house)
        assert list(house.namespace.entities) == ["target", *(f"many-{n}" for n in range(7))]
        base = f"sb://{house.host}/"
    assert seen["namespace"]["name"] == "memory" and seen["namespace"]["messagingSku"] == "Standard"
    assert "messagingUnits" not in seen["namespace"]
    queue = seen["queue"]
    assert {key: queue[key] for key in ("name", "lockDuration", "maxSizeInMegabytes", "maxDeliveryCount", "userMetadata", "status")} == {
        "name": "a/queue",
        "lockDuration": "PT45S",
        "maxSizeInMegabytes": 2048,
        "maxDeliveryCount": 8,
        "userMetadata": "<note>",
        "status": "ReceiveDisabled",
    }
    assert (queue["defaultMessageTimeToLive"], queue["duplicateDetectionHistoryTimeWindow"], queue["autoDeleteOnIdle"]) == (
        "P2D",
        "PT1M",
        "PT1H",
    )
    assert (queue["requiresDuplicateDetection"], queue["enableBatchedOperations"], queue["enablePartitioning"]) == (True, False, False)
    assert queue["forwardDeadLetteredMessagesTo"] == base + "target"
    assert queue["authorizationRules"][0]["accessRights"] == ["Send", "Listen", "Manage"]
    assert (seen["updated"]["maxDeliveryCount"], seen["updated"]["forwardTo"]) == (3, base + "target")
    assert seen["updated"]["lockDuration"] == "PT45S" and seen["sameAfterUpdate"] is True
    assert (seen["runtime"]["name"], seen["runtime"]["totalMessageCount"], seen["runtime"]["activeMessageCount"]) == ("a/queue", 0, 0)


def test_javascript_client_understands_refusals_and_pages(tmp_path: Path) -> None:
    with http_house(tmp_path, loop="uvloop") as house:
        seen = administer(house)
    assert (seen["duplicate"]["code"], seen["duplicate"]["status"]) == ("MessageEntityAlreadyExistsError", 409)
    assert (seen["missing"]["code"], seen["missing"]["status"]) == ("MessageEntityNotFoundError", 404)
    assert seen["bad"]["status"] == 400 and "LockDuration is 10 minutes; 5 seconds to 5 minutes are allowed" in seen["bad"]["message"]
    assert seen["exists"] == [True, False, False]
    assert seen["queues"] == ["a/queue", *(f"many-{n}" for n in range(7)), "target"]
    assert seen["queueCounts"] == [0] * 9
    assert (seen["subscription"]["topicName"], seen["subscription"]["subscriptionName"]) == ("topic/1", "sub")
    assert (seen["subscription"]["requiresSession"], seen["subscription"]["autoDeleteOnIdle"]) == (True, FOREVER)
    rules = {rule["name"]: rule for rule in seen["rules"]}
    assert list(rules) == ["acting", "correlated", "first"]
    assert rules["first"]["filter"] == {"sqlExpression": "x = @p", "sqlParameters": {"@p": 5}}
    assert rules["acting"]["action"]["sqlExpression"] == "SET a = 1"
    assert (rules["correlated"]["filter"]["correlationId"], rules["correlated"]["filter"]["subject"]) == ("c", "s")
    properties = {"text": "t", "number": 1.5, "yes": True, "when": "2020-01-02T03:04:05.678Z"}
    assert rules["correlated"]["filter"]["applicationProperties"] == properties
    assert seen["updatedRule"]["sqlExpression"] == "b > 2"
    assert (seen["subscriptions"], seen["topicRuntime"], seen["subscriptionRuntime"]) == (["sub"], 1, 0)
    assert seen["gone"] == [False, False]
