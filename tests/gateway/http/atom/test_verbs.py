"""Administration as the official Python client sees it, over HTTPS on the port that speaks everything."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import requests
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import (
    AccessRights,
    ApiVersion,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    QueueProperties,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tandem.model.entity import EntityStatus, QueueDescription, Right
from tandem.server.administration_port import RuntimeProperties
from tandem.server.sas import make_token
from tests.gateway.http.http_house import KEY, ROOT, HttpHouse, http_house

FOREVER = datetime.timedelta(days=10675199, seconds=10085, microseconds=477581)


@pytest.fixture(params=["asyncio", "uvloop"])
def house(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[HttpHouse]:
    with http_house(tmp_path, loop=request.param) as running:
        yield running


def client_of(house: HttpHouse, **options: Any) -> ServiceBusAdministrationClient:
    options = {"connection_verify": house.ca, "retry_total": 0} | options
    return ServiceBusAdministrationClient.from_connection_string(house.connection_string, **options)


@pytest.fixture
def client(house: HttpHouse) -> Iterator[ServiceBusAdministrationClient]:
    with client_of(house) as open_client:
        yield open_client


def test_new_queue_has_the_documented_defaults(client: ServiceBusAdministrationClient) -> None:
    created = client.create_queue("orders")
    queue = client.get_queue("ORDERS")
    for properties in (created, queue):
        assert properties.lock_duration == datetime.timedelta(minutes=1)
        assert properties.max_size_in_megabytes == 1024
        assert properties.requires_duplicate_detection is False
        assert properties.requires_session is False
        assert properties.default_message_time_to_live == FOREVER
        assert properties.dead_lettering_on_message_expiration is False
        assert properties.duplicate_detection_history_time_window == datetime.timedelta(minutes=10)
        assert properties.max_delivery_count == 10
        assert properties.enable_batched_operations is True
        assert properties.auto_delete_on_idle == FOREVER
        assert properties.enable_partitioning is False
        assert properties.enable_express is False
        assert properties.status == "Active"
        assert properties.availability_status == "Available"
        assert properties.forward_to is None
        assert properties.forward_dead_lettered_messages_to is None
        assert properties.user_metadata is None
        assert not properties.authorization_rules
        assert properties.max_message_size_in_kilobytes == 256


def test_every_property_of_a_queue_goes_there_and_back(client: ServiceBusAdministrationClient, house: HttpHouse) -> None:
    client.create_topic("target")
    client.create_queue(
        "all",
        auto_delete_on_idle=datetime.timedelta(minutes=10),
        dead_lettering_on_message_expiration=True,
        default_message_time_to_live="PT11M2S",
        duplicate_detection_history_time_window=datetime.timedelta(minutes=12),
        enable_batched_operations=False,
        enable_express=True,
        enable_partitioning=True,
        forward_dead_lettered_messages_to="target",
        forward_to="target",
        lock_duration=datetime.timedelta(seconds=13),
        max_delivery_count=14,
        max_size_in_megabytes=3072,
        requires_session=True,
        user_metadata='<&"> \u00fc\r\n',
        status="SendDisabled",
    )
    queue = client.get_queue("all")
    assert queue.auto_delete_on_idle == datetime.timedelta(minutes=10)
    assert queue.dead_lettering_on_message_expiration is True
    assert queue.default_message_time_to_live == datetime.timedelta(minutes=11, seconds=2)
    assert queue.duplicate_detection_history_time_window == datetime.timedelta(minutes=12)
    assert queue.enable_batched_operations is False
    assert queue.enable_express is True
    assert queue.enable_partitioning is True
    assert queue.forward_to == f"sb://{house.host}/target"
    assert queue.forward_dead_lettered_messages_to == f"sb://{house.host}/target"
    assert queue.lock_duration == datetime.timedelta(seconds=13)
    assert queue.max_delivery_count == 14
    assert queue.max_size_in_megabytes == 3072
    assert queue.requires_session is True
    assert queue.user_metadata == '<&"> \u00fc\n'  # the client sends a bare CR, which XML reads as a line feed
    assert queue.status == "SendDisabled"
    kept = house.namespace.entities["all"]
    assert isinstance(kept, QueueDescription)
    assert (kept.forward_to, kept.status) == ("target", EntityStatus.SEND_DISABLED)


def test_update_changes_what_it_says_and_clears_forwards_it_leaves_out(client: ServiceBusAdministrationClient) -> None:
    client.create_topic("topic")
    queue = client.create_queue("q", requires_duplicate_detection=True, user_metadata="note")
    queue.lock_duration = datetime.timedelta(minutes=2)
    queue.forward_to = "topic"
    queue.forward_dead_lettered_messages_to = "topic"
    client.update_queue(queue)
    queue = client.get_queue("q")
    assert queue.lock_duration == datetime.timedelta(minutes=2)
    assert queue.forward_to is not None and queue.forward_to.endswith("/topic")
    assert queue.user_metadata == "note"
    assert queue.requires_duplicate_detection is True
    client.update_queue(queue, forward_to=None, forward_dead_lettered_messages_to=None, user_metadata=None, max_delivery_count=3)
    queue = client.get_queue("q")
    assert (queue.forward_to, queue.forward_dead_lettered_messages_to, queue.user_metadata) == (None, None, None)
    assert queue.max_delivery_count == 3
    assert queue.default_message_time_to_live == FOREVER  # the client shaves a microsecond off it on every update
    client.update_queue(queue, forward_to="q")  # to itself: the service accepts it


def test_update_is_refused_for_what_cannot_change_or_is_not_there(client: ServiceBusAdministrationClient) -> None:
    queue = client.create_queue("q")
    queue.requires_session = True
    with pytest.raises(
        HttpResponseError, match="The value for the RequiresSession property of an existing Queue cannot be changed"
    ) as refused:
        client.update_queue(queue)
    assert refused.value.status_code == 400
    queue.requires_session = False
    queue.lock_duration = datetime.timedelta(days=25)
    with pytest.raises(HttpResponseError, match="LockDuration is 25 days; 5 seconds to 5 minutes are allowed"):
        client.update_queue(queue)
    queue.lock_duration = datetime.timedelta(minutes=1)
    for name in ("missing", ""):
        queue.name = name
        with pytest.raises(HttpResponseError) as refused:
            client.update_queue(queue)
        assert refused.value.status_code == 404
    assert client.get_queue("q").lock_duration == datetime.timedelta(minutes=1)


def test_names_may_have_slashes_and_dots_and_are_one_space(client: ServiceBusAdministrationClient) -> None:
    for name in ("txt/.-_123", "contoso/x-servicebus-transfer/0"):
        assert client.create_queue(name).name == name
        assert client.get_queue(name.upper()).name == name.upper()
    assert [queue.name for queue in client.list_queues()] == ["contoso/x-servicebus-transfer/0", "txt/.-_123"]
    with pytest.raises(ResourceExistsError) as refused:
        client.create_topic("TXT/.-_123")
    assert "SubCode=40900." in str(refused.value)
    client.delete_queue("txt/.-_123")
    with pytest.raises(ResourceNotFoundError):
        client.delete_queue("txt/.-_123")
    assert [queue.name for queue in client.list_queues()] == ["contoso/x-servicebus-transfer/0"]


@pytest.mark.parametrize("name", ["a b", "caf\u00e9", "$queue", "a//b", "a/../b", "..", "x" * 261, "a?b", "a#b", "a%2Fb", "a\\b", "a/"])
def test_bad_names_are_refused_and_create_nothing(client: ServiceBusAdministrationClient, house: HttpHouse, name: str) -> None:
    with pytest.raises(HttpResponseError) as refused:
        client.create_queue(name)
    assert refused.value.status_code in (400, 404)
    assert house.namespace.entities == {}


def test_empty_names_are_refused_everywhere(client: ServiceBusAdministrationClient) -> None:
    client.create_topic("t")
    client.create_subscription("t", "s")
    for call in (
        lambda: client.create_queue(""),
        lambda: client.get_queue(""),
        lambda: client.create_subscription("t", ""),
        lambda: client.get_subscription("t", ""),
        lambda: client.create_rule("t", "s", ""),
        lambda: client.get_rule("t", "s", ""),
    ):
        with pytest.raises(HttpResponseError) as refused:
            call()
        assert refused.value.status_code in (400, 404)


def test_error_says_what_where_and_when(client: ServiceBusAdministrationClient) -> None:
    with pytest.raises(ResourceNotFoundError) as refused:
        client.get_queue("missing")
    text = str(refused.value)
    assert "SubCode=40400. The messaging entity 'missing' could not be found. TrackingId:" in text
    assert "SystemTracker:memory:missing, Timestamp:" in text


def _renamed(queue: QueueProperties, name: str) -> QueueProperties:
    queue.name = name
    return queue


def test_getting_the_other_kind_finds_nothing(client: ServiceBusAdministrationClient) -> None:
    client.create_topic("t")
    client.create_queue("q")
    with pytest.raises((ResourceNotFoundError, AttributeError)):
        client.get_queue("t")
    with pytest.raises(HttpResponseError) as refused:
        client.update_queue(_renamed(client.get_queue("q"), "t"))
    assert refused.value.status_code == 404


def test_runtime_properties_are_what_the_broker_counts(client: ServiceBusAdministrationClient, house: HttpHouse) -> None:
    client.create_queue("q")
    house.namespace.runtimes["q"] = RuntimeProperties(
        active=1, dead_lettered=2, scheduled=3, transfer=4, transfer_dead_lettered=5, size_bytes=6, accessed_at_ms=1_700_000_000_123
    )
    runtime = client.get_queue_runtime_properties("q")
    assert (runtime.active_message_count, runtime.dead_letter_message_count, runtime.scheduled_message_count) == (1, 2, 3)
    assert (runtime.transfer_message_count, runtime.transfer_dead_letter_message_count) == (4, 5)
    assert (runtime.total_message_count, runtime.size_in_bytes) == (15, 6)
    assert runtime.accessed_at_utc == datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=datetime.UTC)
    assert runtime.created_at_utc is not None and runtime.created_at_utc == runtime.updated_at_utc
    assert [r.active_message_count for r in client.list_queues_runtime_properties()] == [1]


def test_queue_never_touched_was_accessed_never(client: ServiceBusAdministrationClient) -> None:
    client.create_queue("q")
    accessed = client.get_queue_runtime_properties("q").accessed_at_utc
    assert accessed is not None and accessed.year == 1


@pytest.mark.slow
def test_listing_pages_through_everything_in_order(client: ServiceBusAdministrationClient) -> None:
    names = [f"queue-{number:03d}" for number in range(250)]
    for name in reversed(names):
        client.create_queue(name)
    assert [queue.name for queue in client.list_queues()] == names


@pytest.mark.slow
def test_page_that_is_exactly_full_is_the_last(client: ServiceBusAdministrationClient) -> None:
    for number in range(100):
        client.create_topic(f"t{number:03d}")
    pages = list(client.list_topics().by_page())
    assert len(pages) == 1
    client.create_topic("t100")
    assert [len(list(page)) for page in client.list_topics().by_page()] == [100, 1]


def test_topic_properties_go_there_and_back(client: ServiceBusAdministrationClient) -> None:
    client.create_topic(
        "t",
        default_message_time_to_live=datetime.timedelta(minutes=11),
        max_size_in_megabytes=2048,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=datetime.timedelta(minutes=12),
        enable_batched_operations=False,
        support_ordering=False,
        auto_delete_on_idle=datetime.timedelta(minutes=10),
        enable_partitioning=True,
        user_metadata="m",
    )
    topic = client.get_topic("t")
    assert topic.default_message_time_to_live == datetime.timedelta(minutes=11)
    assert topic.duplicate_detection_history_time_window == datetime.timedelta(minutes=12)
    assert (topic.max_size_in_megabytes, topic.requires_duplicate_detection, topic.enable_partitioning) == (2048, True, True)
    assert (topic.enable_batched_operations, topic.support_ordering, topic.user_metadata) == (False, False, "m")
    client.update_topic(topic, status="Disabled", user_metadata=None)
    topic = client.get_topic("t")
    assert (topic.status, topic.user_metadata) == ("Disabled", None)
    client.create_subscription("t", "s")
    client.create_rule("t", "s", "c", filter=CorrelationRuleFilter(label="x"))
    runtime = client.get_topic_runtime_properties("t")
    assert (runtime.subscription_count, runtime.sql_filter_count, runtime.correlation_filter_count) == (1, 1, 1)
    client.delete_topic("t")
    with pytest.raises(HttpResponseError):
        list(client.list_subscriptions("t"))


def test_subscription_goes_there_and_back(client: ServiceBusAdministrationClient, house: HttpHouse) -> None:
    client.create_topic("a/topic")
    client.create_queue("q")
    client.create_subscription(
        "a/topic",
        "s",
        lock_duration="PT3M3S",
        requires_session=True,
        default_message_time_to_live=datetime.timedelta(minutes=11),
        dead_lettering_on_message_expiration=True,
        dead_lettering_on_filter_evaluation_exceptions=False,
        max_delivery_count=14,
        auto_delete_on_idle=datetime.timedelta(minutes=10),
        forward_dead_lettered_messages_to="q",
    )
    subscription = client.get_subscription("a/topic", "s")
    assert subscription.lock_duration == datetime.timedelta(minutes=3, seconds=3)
    assert (subscription.requires_session, subscription.max_delivery_count) == (True, 14)
    assert subscription.dead_lettering_on_filter_evaluation_exceptions is False
    assert subscription.forward_dead_lettered_messages_to == f"sb://{house.host}/q"
    client.update_subscription("a/topic", subscription, forward_dead_lettered_messages_to=None, max_delivery_count=5)
    subscription = client.get_subscription("a/topic", "s")
    assert (subscription.forward_dead_lettered_messages_to, subscription.max_delivery_count) == (None, 5)
    house.namespace.runtimes["a/topic/subscriptions/s"] = RuntimeProperties(active=7, dead_lettered=1)
    runtime = client.get_subscription_runtime_properties("a/topic", "s")
    assert (runtime.active_message_count, runtime.dead_letter_message_count, runtime.total_message_count) == (7, 1, 8)
    assert [s.name for s in client.list_subscriptions("a/topic")] == ["s"]
    with pytest.raises(ResourceExistsError):
        client.create_subscription("a/topic", "S")
    with pytest.raises(HttpResponseError):
        client.create_subscription("missing", "s")
    client.delete_subscription("a/topic", "s")
    with pytest.raises(ResourceNotFoundError):
        client.get_subscription("a/topic", "s")


def test_rules_keep_filters_actions_and_the_types_of_values(client: ServiceBusAdministrationClient) -> None:
    client.create_topic("t")
    client.create_subscription("t", "s")
    default = client.get_rule("t", "s", "$Default")
    assert isinstance(default.filter, TrueRuleFilter) and default.action is None
    now = datetime.datetime(2020, 7, 5, 11, 12, 13)
    values: dict[str, Any] = {
        "string": "s",
        "int": 5,
        "long": 2**40,
        "bool": True,
        "double": 1.5,
        "when": now,
        "span": datetime.timedelta(days=1, hours=2, minutes=3),
    }
    client.create_rule("t", "s", "sql", filter=SqlRuleFilter("x = @int", values), action=SqlRuleAction("SET y = @int", values))
    client.create_rule("t", "s", "correlation", filter=CorrelationRuleFilter(correlation_id="c", label="l", properties=values))
    client.create_rule("t", "s", "never", filter=FalseRuleFilter())
    sql = client.get_rule("t", "s", "sql")
    assert isinstance(sql.filter, SqlRuleFilter) and isinstance(sql.action, SqlRuleAction)
    assert (sql.filter.sql_expression, sql.filter.parameters) == ("x = @int", values)
    assert (sql.action.sql_expression, sql.action.parameters) == ("SET y = @int", values)
    correlation = client.get_rule("t", "s", "CORRELATION")
    assert isinstance(correlation.filter, CorrelationRuleFilter)
    assert (correlation.filter.correlation_id, correlation.filter.label, correlation.filter.to) == ("c", "l", None)
    assert correlation.filter.properties == values
    assert isinstance(client.get_rule("t", "s", "never").filter, FalseRuleFilter)
    assert [rule.name for rule in client.list_rules("t", "s")] == ["$Default", "correlation", "never", "sql"]
    sql.filter = SqlRuleFilter("y > 3")
    sql.action = None
    client.update_rule("t", "s", sql)
    again = client.get_rule("t", "s", "sql")
    assert isinstance(again.filter, SqlRuleFilter) and again.filter.sql_expression == "y > 3"
    client.delete_rule("t", "s", "$Default")
    with pytest.raises(ResourceNotFoundError):
        client.get_rule("t", "s", "$Default")
    with pytest.raises(ResourceExistsError):
        client.create_rule("t", "s", "SQL")
    with pytest.raises(HttpResponseError, match="1025 characters; at most 1024"):
        client.create_rule("t", "s", "long", filter=SqlRuleFilter("x" * 1025))


def test_namespace_introduces_itself(client: ServiceBusAdministrationClient) -> None:
    info = client.get_namespace_properties()
    assert (info.name, info.messaging_sku, info.namespace_type) == ("memory", "Standard", "Messaging")
    assert info.created_at_utc is not None and info.messaging_units is None


def test_authorization_rules_are_kept_and_their_keys_work(client: ServiceBusAdministrationClient, house: HttpHouse) -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN],
        key_name="own",
        primary_key=KEY,
        secondary_key=KEY,
    )
    keyless = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.SEND],
        key_name="sender",
    )
    client.create_queue("q", authorization_rules=[rule, keyless])
    queue = client.get_queue("q")
    own, sender = queue.authorization_rules
    assert (own.key_name, own.primary_key, set(own.rights)) == ("own", KEY, {"Manage", "Send", "Listen"})
    assert sender.rights == ["Send"] and len(sender.primary_key) == 44 and sender.primary_key != sender.secondary_key
    client.update_queue(queue, max_delivery_count=3)
    kept = house.namespace.entities["q"].authorization_rules
    assert [r.primary_key for r in kept] == [KEY, sender.primary_key]
    # The queue's own key manages the queue, and nothing else. Its token must be made for the queue.
    token = make_token(f"https://{house.host}/q", "own", KEY, house.clock.now_ms() + 60_000)
    for path, status in (("q", 200), ("other", 401), ("$Resources/queues", 401)):
        answer = requests.get(f"https://{house.host}/{path}", headers={"Authorization": token}, verify=house.ca, timeout=10)
        assert answer.status_code == status, path


@pytest.mark.parametrize("verb", ["get", "create", "update", "delete", "list", "namespace"])
def test_wrong_expired_and_lesser_keys_are_refused_on_every_verb(
    client: ServiceBusAdministrationClient, house: HttpHouse, verb: str
) -> None:
    queue = client.create_queue("q")
    house.namespace.root = replace(ROOT, rights=frozenset({Right.SEND, Right.LISTEN}))
    before = dict(house.namespace.entities)
    strings = [house.connection_string, house.connection_string_for(ROOT.key_name, "wrong"), house.connection_string_for("nobody", KEY)]
    expired = make_token(f"https://{house.host}", ROOT.key_name, KEY, house.clock.now_ms() - 600_000)
    strings.append(f"Endpoint=sb://{house.host};SharedAccessSignature={expired}")
    for string in strings:
        with ServiceBusAdministrationClient.from_connection_string(string, connection_verify=house.ca, retry_total=0) as stranger:
            calls = {
                "get": lambda: stranger.get_queue("q"),
                "create": lambda: stranger.create_queue("new"),
                "update": lambda: stranger.update_queue(queue, max_delivery_count=1),
                "delete": lambda: stranger.delete_queue("q"),
                "list": lambda: list(stranger.list_queues()),
                "namespace": lambda: stranger.get_namespace_properties(),
            }
            with pytest.raises(ClientAuthenticationError) as refused:
                calls[verb]()
            assert refused.value.status_code == 401
    assert house.namespace.entities == before


def test_ready_made_token_is_accepted_with_bearer_before_it(house: HttpHouse) -> None:
    token = make_token(f"https://{house.host}", ROOT.key_name, KEY, house.clock.now_ms() + 600_000)
    string = f"Endpoint=sb://{house.host};SharedAccessSignature={token}"
    with ServiceBusAdministrationClient.from_connection_string(string, connection_verify=house.ca) as client:
        client.create_queue("q")
        client.create_queue("forwarding", forward_to="q")


def test_message_size_is_for_newer_versions(house: HttpHouse) -> None:
    with client_of(house, api_version=ApiVersion.V2017_04) as old:
        with pytest.raises(HttpResponseError, match="needs api-version 2021-05"):
            old.create_queue("q", max_message_size_in_kilobytes=1024)
        old.create_queue("q")
        assert old.get_queue("q").max_message_size_in_kilobytes is None
        assert old.get_topic_runtime_properties(old.create_topic("t").name).sql_filter_count is None
        assert [queue.name for queue in old.list_queues()] == ["q"]


def test_any_entity_may_be_given_up_to_100_megabytes_for_a_message(house: HttpHouse) -> None:
    with client_of(house) as client:
        for size in (0, 102_401):
            with pytest.raises(HttpResponseError, match="whole numbers from 1 to 102400 are allowed"):
                client.create_queue("q", max_message_size_in_kilobytes=size)
        assert client.create_queue("default").max_message_size_in_kilobytes == 256
        for size in (1, 260, 102_400):
            assert client.create_queue(f"q{size}", max_message_size_in_kilobytes=size).max_message_size_in_kilobytes == size
            assert client.create_topic(f"t{size}", max_message_size_in_kilobytes=size).max_message_size_in_kilobytes == size
        queue = client.create_queue("q", max_message_size_in_kilobytes=12_345)
        assert queue.max_message_size_in_kilobytes == 12_345
        client.update_queue(queue, max_message_size_in_kilobytes=54_321)
        assert client.get_queue("q").max_message_size_in_kilobytes == 54_321


def test_forward_must_lead_to_what_exists_here_and_may_be_sent_to(client: ServiceBusAdministrationClient, house: HttpHouse) -> None:
    client.create_queue("target")
    with pytest.raises(HttpResponseError, match="ForwardTo names 'missing', which is no queue or topic"):
        client.create_queue("q", forward_to="missing")
    with pytest.raises(HttpResponseError, match="a queue or topic of this namespace"):
        client.create_queue("q", forward_to="sb://elsewhere.example/target")
    bad = {"ServiceBusSupplementaryAuthorization": house.token(ROOT.key_name, "wrong")}
    with pytest.raises(ClientAuthenticationError):
        _put_forwarding(house, bad)
    assert set(house.namespace.entities) == {"target"}


def _put_forwarding(house: HttpHouse, headers: dict[str, str], before: str = "") -> None:
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
        'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
        f"<ForwardTo>{before}sb://{house.host}/target</ForwardTo></QueueDescription></content></entry>"
    )
    answer = requests.put(
        f"https://{house.host}/q?api-version=2021-05",
        data=body,
        headers={"Authorization": house.token()} | headers,
        verify=house.ca,
        timeout=10,
    )
    if answer.status_code == 401:
        raise ClientAuthenticationError(response=None, message=answer.text)
    assert answer.status_code == 201, answer.text


def test_forward_without_its_own_header_uses_the_requests_token(client: ServiceBusAdministrationClient, house: HttpHouse) -> None:
    client.create_queue("target")
    _put_forwarding(house, {})
    assert client.get_queue("q").forward_to == f"sb://{house.host}/target"


def test_forward_is_taken_as_the_java_client_sends_it_back(client: ServiceBusAdministrationClient, house: HttpHouse) -> None:
    client.create_queue("target")
    _put_forwarding(house, {}, before=f"https://{house.host.partition(':')[0]}/")
    assert client.get_queue("q").forward_to == f"sb://{house.host}/target"
    with pytest.raises(AssertionError, match="a queue or topic of this namespace"):
        _put_forwarding(house, {}, before="https://elsewhere.example/")


@pytest.mark.parametrize("path", ["t/Subscriptions", "t/Subscriptions/", "t/Subscriptions/s/Rules", "t/Subscriptions/s/Rules/"])
def test_a_list_has_the_address_under_which_it_was_asked_for(client: ServiceBusAdministrationClient, house: HttpHouse, path: str) -> None:
    """azure-sb of Node.js asks with a slash at the end, and takes a list with another address for that of something else."""
    client.create_topic("t")
    client.create_subscription("t", "s")
    url = f"https://{house.host}/{path}"
    answer = requests.get(f"{url}?api-version=2013-07", headers={"Authorization": house.token()}, verify=house.ca, timeout=10)
    assert f"<id>{url}?" in answer.text


@pytest.mark.slow
async def test_async_client_does_the_same(house: HttpHouse) -> None:
    string = house.connection_string
    async with AsyncAdministrationClient.from_connection_string(string, connection_verify=house.ca, retry_total=0) as client:
        await client.create_queue("q", lock_duration=datetime.timedelta(seconds=30))
        queue = await client.get_queue("q")
        queue.max_delivery_count = 3
        await client.update_queue(queue)
        assert (await client.get_queue("q")).max_delivery_count == 3
        with pytest.raises(ResourceExistsError):
            await client.create_queue("Q")
        await client.create_topic("t")
        await client.create_subscription("t", "s")
        await client.create_rule("t", "s", "r", filter=SqlRuleFilter("a = 1"))
        assert [rule.name async for rule in client.list_rules("t", "s")] == ["$Default", "r"]
        assert [s.name async for s in client.list_subscriptions("t")] == ["s"]
        assert (await client.get_subscription_runtime_properties("t", "s")).active_message_count == 0
        for number in range(101):
            await client.create_queue(f"many/{number}")
        assert len([queue async for queue in client.list_queues()]) == 102
        await client.delete_topic("t")
        await client.delete_queue("q")
        with pytest.raises(ResourceNotFoundError):
            await client.get_queue("q")
        assert (await client.get_namespace_properties()).name == "memory"
