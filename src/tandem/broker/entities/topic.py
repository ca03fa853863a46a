"""A topic: each message goes to every subscription whose rules want it, in one durable write however many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from tandem.broker import facts
from tandem.broker.meters import Meter
from tandem.broker.ports import Rewriter
from tandem.broker.queue.delivery import Receivers
from tandem.broker.queue.entity import Entity
from tandem.broker.queue.intake import Intake
from tandem.broker.queue.ledger import Ledger
from tandem.broker.queue.moves import reasons
from tandem.broker.queue.queue import Carriers, Queue
from tandem.broker.queue.rows import Backing
from tandem.broker.queue.terms import Terms
from tandem.broker.rules.rules import RuleSet, Selection, compile_rule
from tandem.broker.rules.topic_rules import TopicRules
from tandem.model.entity import MAX_DURATION_MS, QueueDescription, SubscriptionDescription, TopicDescription
from tandem.model.errors import QuotaExceeded, StoreFull
from tandem.model.message import Message, encode_body

if TYPE_CHECKING:
    from tandem.broker.entities.queue_entity import QueueEntity
    from tandem.broker.ports import RowId
    from tandem.broker.turn import Turn
    from tandem.model.limits import Limits

_UNBOUNDED: Final = 1 << 40
_Copy = tuple[Intake, Message, bool]
"""Where a copy with a body of its own goes, and whether as a dead letter."""


class RulesChanged(Protocol):
    def rules_changed(self) -> None: ...


def compile_rules(description: SubscriptionDescription, limits: Limits, before: RuleSet | None = None) -> RuleSet:
    """`before`: its rules that stay are not compiled again."""
    known = {id(rule.description): rule for rule in before.rules} if before is not None else {}
    return RuleSet([known.get(id(rule)) or compile_rule(rule, limits) for rule in description.rules])


class Subscription:
    """A durable subscription: a queue with sub-queues, and the rules that fill it."""

    def __init__(self, description: SubscriptionDescription, entity: QueueEntity, rules: RuleSet) -> None:
        self.description = description
        self.entity = entity
        self.rules = rules
        self.queue: Entity = entity.main
        self.part: Queue = entity.main.parts()[0]
        """What its topic fills: its queue, or its fragment in the store of a fragment of the topic."""
        self.topic: RulesChanged | None = None
        self.whole: Subscription | None = None
        """The subscription of which this is one fragment."""

    def belong_to(self, topic: RulesChanged) -> None:
        self.topic = topic

    def be_part_of(self, whole: Subscription) -> None:
        self.whole = whole

    def follow(self, whole: Subscription) -> None:
        """Its description and rules have changed."""
        self.description = whole.description
        self.rules = whole.rules

    def configure(self, description: SubscriptionDescription, limits: Limits) -> None:
        self.description = description
        self.rules = compile_rules(description, limits, self.rules)
        self.entity.configure(queue_of_subscription(description))
        if self.topic is not None:
            self.topic.rules_changed()


def queue_of_subscription(description: SubscriptionDescription) -> QueueDescription:
    """The queue behind a subscription. Its size counts against the topic's."""
    return QueueDescription(
        name=f"{description.topic}/Subscriptions/{description.name}",
        lock_duration_ms=description.lock_duration_ms,
        max_size_megabytes=_UNBOUNDED,
        requires_session=description.requires_session,
        default_message_time_to_live_ms=description.default_message_time_to_live_ms,
        dead_lettering_on_message_expiration=description.dead_lettering_on_message_expiration,
        max_delivery_count=description.max_delivery_count,
        enable_batched_operations=description.enable_batched_operations,
        status=description.status,
        auto_delete_on_idle_ms=description.auto_delete_on_idle_ms,
        forward_to=description.forward_to,
        forward_dead_lettered_messages_to=description.forward_dead_lettered_messages_to,
        user_metadata=description.user_metadata,
        locks_outlive_connections=description.locks_outlive_connections,
        created_at_ms=description.created_at_ms,
        updated_at_ms=description.updated_at_ms,
    )


def queue_of_topic(description: TopicDescription) -> QueueDescription:
    """The sending half of a topic: checks, duplicate detection and scheduled messages work as for a queue."""
    return QueueDescription(
        name=description.name,
        max_size_megabytes=description.max_size_megabytes,
        requires_duplicate_detection=description.requires_duplicate_detection,
        duplicate_detection_history_ms=description.duplicate_detection_history_ms,
        default_message_time_to_live_ms=description.default_message_time_to_live_ms,
        status=description.status,
        max_message_bytes=description.max_message_bytes,
        authorization_rules=description.authorization_rules,
        created_at_ms=description.created_at_ms,
        updated_at_ms=description.updated_at_ms,
    )


class TopicIntake(Intake):
    """Scheduled messages wait in the topic; all others pass straight through to the subscriptions."""

    def __init__(self, ledger: Ledger, terms: Terms, meter: Meter, rewriter: Rewriter) -> None:
        super().__init__(ledger, terms, meter)
        self.rewriter: Rewriter = rewriter
        self.subscriptions: dict[str, Subscription] = {}
        self.shares_room = True
        self._passing: list[Subscription] = []
        """Those that take every message as it is: nobody has to look into it."""
        self._ruled: TopicRules[Subscription] = TopicRules(())
        self._selective: bool = False
        self._stale: bool = False
        self._rows: list[RowId] = []
        """Of the copies of the last message."""
        self._elsewhere: bool = False
        self._room_bytes: int = 0
        """At most: what was free at the last count, less everything written since."""

    def rules_changed(self) -> None:
        """Subscriptions are looked up by what their rules demand; that is worked out again with the next message."""
        self._stale = True

    def size_changed(self) -> None:
        self._room_bytes = 0

    def _sort_subscriptions(self) -> None:
        self._stale = False
        subscriptions = list(self.subscriptions.values())
        self._passing = [one for one in subscriptions if one.rules.passes_all]
        selective = [(one, one.rules) for one in subscriptions if not one.rules.passes_all]
        self._ruled = TopicRules(selective)
        self._selective = bool(selective)

    def check_room(self, body_bytes: int) -> None:
        path, short_of_room = self.terms.path, self.rows.backing.short_of_room
        if short_of_room:
            raise StoreFull(f"'{path}' takes no messages: {short_of_room}. Receive messages, or try again later.")
        if body_bytes * len(self.subscriptions) < self._room_bytes:
            return
        held = self.rows.index.size_bytes
        for subscription in self.subscriptions.values():
            held += subscription.part.index.size_bytes
        self._room_bytes = self.terms.quota_bytes - held
        if body_bytes > self._room_bytes:
            raise QuotaExceeded(
                f"The maximum size of topic '{path}' ({self.terms.quota_bytes} bytes over all subscriptions) has been reached. "
                "Receive messages, or raise the size."
            )

    def place(self, message: Message, now: int) -> int:
        if message.scheduled_at > now:
            self._room_bytes -= message.size_bytes
            return super().place(message, now)
        return self._fan_out(message, now)

    def _fan_out(self, message: Message, now: int) -> int:
        number = self.rows.next_seq
        self._rows = []
        self._elsewhere = False
        if self._stale:
            self._sort_subscriptions()
        plain = self._passing
        if self._selective:
            plain = list(plain)
            copies: list[_Copy] = []
            for subscription, selection in self._ruled.select(self.rewriter.view(message, now)):
                if self._copies(subscription, selection, message, copies):
                    plain.append(subscription)
            for copy in copies:  # only now: if the store of one is down, the message is refused before anything was written
                self._write(copy, now)
        targets: list[facts.Target] = []
        intakes: list[Intake] = []
        for subscription in plain:
            queue = subscription.part
            if queue.terms.has_sessions and message.session_id is None:
                self._write(self._without_session(subscription, message), now)
                continue
            targets.append((queue.entity_id, queue.rows.next_seq, queue.terms.expiry(self._capped(message.ttl_ms), now)))
            intakes.append(queue.intake)
        if targets:
            self._publish(number, message, targets, intakes, now)
        self.rows.apply_passed(number, message.message_id, False, now)
        return number

    def _publish(self, number: int, message: Message, targets: list[facts.Target], intakes: list[Intake], now: int) -> None:
        """One write, however many subscriptions take it as it is."""
        rows = self.rows
        id_, session = message.message_id, message.session_id
        body = encode_body(message)
        location = facts.write_published(rows.backing.journal, rows.entity_id, number, False, id_, session, now, targets, body)
        rows.backing.shared[location] = len(targets)
        size = len(body)
        self._room_bytes -= size * len(targets)
        for i in range(len(targets)):
            _, seq, expires_at = targets[i]
            intakes[i].add_shared(message, location, size, seq, expires_at, now)
        if self.names_rows:
            self._rows.extend([(entity, seq, now) for entity, seq, _ in targets])

    def name_rows(self) -> None:
        """Somebody may want to move what was taken."""
        self.names_rows = True

    def rows_of(self, number: int, now: int) -> list[RowId] | None:
        """Those of its copies; None, it cannot be moved, if some of them are in another store."""
        if not number or self.rows.index.state(number):
            return super().rows_of(number, now)
        return None if self._elsewhere else self._rows

    def _capped(self, ttl_ms: int) -> int:
        default_ttl_ms = self.terms.default_ttl_ms
        return default_ttl_ms if ttl_ms < 0 or ttl_ms > default_ttl_ms else ttl_ms

    def _copies(self, subscription: Subscription, selection: Selection, message: Message, copies: list[_Copy]) -> bool:
        """Whether the subscription gets the message as it is; what it gets otherwise is added to `copies`."""
        plain = False
        for _, changes in selection.copies:
            if not changes:
                plain = True
                continue
            changed = self.rewriter.with_changes(message, changes)
            if self.terms.default_ttl_ms < MAX_DURATION_MS:
                changed.live_for(self._capped(changed.ttl_ms))
            if subscription.part.terms.has_sessions and changed.session_id is None:
                copies.append(self._without_session(subscription, changed))
            else:
                copies.append((self._place_of(subscription, changed), changed, False))
        failure = selection.failure
        if failure is not None and subscription.description.dead_lettering_on_filter_evaluation_exceptions:
            copies.append(self._dead(subscription, message, "FilterEvaluationException", failure.description))
        return plain

    def _place_of(self, subscription: Subscription, changed: Message) -> Intake:
        """An action may have given a copy another session, and sessions have their fragments."""
        whole = subscription.whole
        if whole is not None and whole.queue.terms.has_sessions:
            return whole.queue.destination(changed).intake
        return subscription.part.intake

    def _without_session(self, subscription: Subscription, message: Message) -> _Copy:
        """One subscription's demand is not the publisher's fault: the copy is set aside where an operator finds it."""
        return self._dead(subscription, message, "Session ID is null", "The subscription requires sessions; the message has none.")

    def _dead(self, subscription: Subscription, message: Message, reason: str, description: str) -> _Copy:
        shelf = subscription.part.moves.dead_letters
        assert shelf is not None
        return shelf, self.rewriter.with_properties(message, reasons(reason, description)), True

    def _write(self, copy: _Copy, now: int) -> None:
        intake, message, is_dead = copy
        seq = intake.take_over(message, now, 0) if is_dead else intake.place(message, now)
        self._rows.append((intake.rows.entity_id, seq, now))
        self._room_bytes -= message.size_bytes
        if intake.rows.backing is not self.rows.backing:
            self._elsewhere = True


class Topic(Queue):
    """What senders see."""

    def __init__(
        self,
        entity_id: int,
        id_: int,
        store: int,
        description: TopicDescription,
        backing: Backing,
        meter: Meter,
        turn: Turn,
        rewriter: Rewriter,
        nonce: int,
        base: int,
        message_bytes_max: int,
    ) -> None:
        terms = Terms(description.name, description.name, False, queue_of_topic(description), message_bytes_max)
        super().__init__(entity_id, terms, backing, meter, turn, rewriter, Carriers(), nonce, base)
        self.topic_description: TopicDescription = description
        self.store: int = store
        self.id: int = id_

    def _new_intake(self) -> Intake:
        self.fan: TopicIntake = TopicIntake(self.ledger, self.terms, self.meter, self.rewriter)
        return self.fan

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        return self.fan.subscriptions

    def join(self, receivers: Receivers) -> None:
        super().join(receivers)
        self.fan.name_rows()

    def reconfigure(self, description: TopicDescription) -> None:
        self.topic_description = description
        self.configure(queue_of_topic(description))
        self.fan.size_changed()

    def add_subscription(self, subscription: Subscription) -> None:
        subscription.belong_to(self)
        self.subscriptions[subscription.description.name.casefold()] = subscription
        self.rules_changed()

    def remove_subscription(self, name: str) -> Subscription:
        found = self.subscriptions.pop(name.casefold())
        self.rules_changed()
        return found

    def rules_changed(self) -> None:
        self.fan.rules_changed()
