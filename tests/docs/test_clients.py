"""The README's table of clients says what tests show: each tick names a test that is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CONFORMANCE = "tests/conformance"
GO = f"{CONFORMANCE}/test_go_client.py"
PROTON = f"{CONFORMANCE}/test_proton_client.py"
JAVA = f"{CONFORMANCE}/test_java_client.py"
COLUMNS = ("messages", "sessions", "topics, rules", "administration", "transactions", "TLS", "WebSocket")
PROOFS: dict[str, dict[str, str]] = {
    "Python": {
        "messages": f"{CONFORMANCE}/test_sending.py::test_everything_a_sender_can_set_comes_back_as_it_was",
        "sessions": f"{CONFORMANCE}/test_sessions.py::test_a_session_is_accepted_by_id_and_read_in_order",
        "topics, rules": "tests/gateway/http/atom/test_verbs.py::test_rules_keep_filters_actions_and_the_types_of_values",
        "administration": f"{CONFORMANCE}/test_administration.py::test_what_cannot_be_changed_is_said_in_the_words_programs_look_for",
        "TLS": f"{CONFORMANCE}/test_kombu.py::test_kombu_finds_a_broker_that_has_a_name_two_ports_and_a_certificate_it_trusts",
        "WebSocket": f"{CONFORMANCE}/test_sending.py::test_amqp_over_websocket_carries_250_kib_both_ways",
    },
    "JavaScript": {
        "messages": f"{CONFORMANCE}/test_js_client.py::test_sends_and_receives",
        "sessions": f"{CONFORMANCE}/test_js_client.py::test_sessions_by_id_and_next",
        "topics, rules": f"{CONFORMANCE}/test_js_client.py::test_rule_manager",
        "administration": f"{CONFORMANCE}/test_js_client.py::test_administration_over_https_with_the_same_connection_string",
        "TLS": f"{CONFORMANCE}/test_js_client.py::test_sends_and_receives_over_tls",
        "WebSocket": f"{CONFORMANCE}/test_js_client.py::test_sends_and_receives_over_websocket",
    },
    "Go": {
        "messages": f"{GO}::test_sends_and_receives",
        "sessions": f"{GO}::test_sessions_by_id_and_next_with_state_and_deferred_messages",
        "topics, rules": f"{GO}::test_topics_and_rules",
        "administration": f"{GO}::test_administration_over_https_with_the_same_connection_string",
        "TLS": f"{GO}::test_sends_and_receives_over_tls",
        "WebSocket": f"{GO}::test_sends_and_receives_over_websocket_with_the_sub_protocol_of_its_documentation",
    },
    "Java": {
        "messages": f"{JAVA}::test_sends_and_receives_over_tls",
        "sessions": f"{JAVA}::test_sessions_by_id_and_next_with_state_and_deferred_messages",
        "topics, rules": f"{JAVA}::test_topics_and_rules",
        "administration": f"{JAVA}::test_the_administration_client_works_on_any_port_with_a_policy_of_three_lines",
        "transactions": f"{JAVA}::test_nothing_of_a_transaction_that_was_rolled_back_has_happened",
        "TLS": f"{JAVA}::test_sends_and_receives_over_tls",
        "WebSocket": f"{JAVA}::test_sends_and_receives_over_websocket",
    },
    "JMS": {
        "messages": f"{CONFORMANCE}/test_jms.py::test_sends_and_receives",
        "topics, rules": f"{CONFORMANCE}/test_jms.py::test_a_subscription_is_received_from_as_a_queue",
        "transactions": f"{CONFORMANCE}/test_jms.py::test_a_transacted_session_receives_sends_and_commits_as_one",
        "TLS": f"{CONFORMANCE}/test_jms.py::test_sends_and_receives",
        "WebSocket": f"{CONFORMANCE}/test_jms.py::test_sends_and_receives",
    },
    "Celery, kombu": {
        "messages": f"{CONFORMANCE}/test_kombu.py::test_kombu_finds_a_broker_that_has_a_name_two_ports_and_a_certificate_it_trusts",
        "administration": f"{CONFORMANCE}/test_kombu.py::test_kombu_finds_a_broker_that_has_a_name_two_ports_and_a_certificate_it_trusts",
        "TLS": f"{CONFORMANCE}/test_kombu.py::test_kombu_finds_a_broker_that_has_a_name_two_ports_and_a_certificate_it_trusts",
    },
    "AMQP 1.0 (Proton, rhea)": {
        "messages": f"{PROTON}::test_proton_sends_receives_and_settles",
        "sessions": f"{PROTON}::test_proton_takes_a_session_by_id_and_the_next_one",
        "topics, rules": f"{PROTON}::test_proton_sends_to_a_topic_and_receives_what_the_rule_of_a_subscription_lets_through",
        "transactions": f"{CONFORMANCE}/test_transactions.py::test_proton_moves_messages_in_transactions_and_aborts_one",
        "TLS": f"{PROTON}::test_proton_verifies_the_broker_over_tls",
        "WebSocket": f"{CONFORMANCE}/test_node_clients.py::test_rhea_sends_receives_settles_and_drains",
    },
    "HTTP (`curl`)": {
        "messages": "tests/gateway/http/test_rest.py::test_message_is_sent_and_received_with_all_its_properties",
        "administration": "tests/gateway/http/atom/test_verbs.py::test_topic_properties_go_there_and_back",
    },
}


def table() -> dict[str, dict[str, str]]:
    lines = (ROOT / "README.md").read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("| client |"))
    names = [cell.strip() for cell in lines[start].strip("|").split("|")]
    rows: dict[str, dict[str, str]] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        name = cells[0].partition("](")[0].lstrip("[")
        rows[name] = dict(zip(names[1:], cells[1:], strict=True))
    return rows


def test_the_table_has_a_tick_exactly_where_a_test_shows_it() -> None:
    ticked = {client: {column for column in COLUMNS if cells[column] == "✓"} for client, cells in table().items()}
    assert ticked == {client: set(proofs) for client, proofs in PROOFS.items()}


@pytest.mark.parametrize("proof", sorted({proof for proofs in PROOFS.values() for proof in proofs.values()}))
def test_the_test_behind_a_tick_is_there(proof: str) -> None:
    file, _, name = proof.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
