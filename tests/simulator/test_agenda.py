"""Virtual time: a machine that stands still misses nothing, and nothing overtakes what was due before."""

from __future__ import annotations

import contextvars

from tandem.simulator.agenda import MACHINE, Agenda, Machine


def context_of(machine: Machine) -> contextvars.Context:
    context = contextvars.Context()
    context.run(MACHINE.set, machine)
    return context


def test_what_is_due_on_a_machine_that_sleeps_comes_when_it_wakes_in_its_order() -> None:
    agenda, machine, said = Agenda(), Machine("n1"), list[tuple[float, str]]()

    def at(instant: float, what: str) -> None:
        agenda.call_at(instant, lambda: said.append((agenda.time(), what)), context=context_of(machine))

    agenda.put_to_sleep(machine, 5.0)
    at(5.0, "third")
    at(1.0, "first")
    at(2.0, "second")
    at(6.0, "fourth")
    agenda.run(lambda: len(said) == 4)
    assert said == [(5.0, "first"), (5.0, "second"), (5.0, "third"), (6.0, "fourth")]


def test_nothing_overtakes_what_was_due_before_when_it_is_woken_early() -> None:
    agenda, machine, said = Agenda(), Machine("n1"), list[tuple[float, str]]()
    agenda.put_to_sleep(machine, 30.0)
    agenda.call_at(1.0, lambda: said.append((agenda.time(), "accepted")), context=context_of(machine))
    agenda.call_at(2.0, agenda.wake, machine, context=contextvars.Context())
    agenda.call_at(2.5, lambda: said.append((agenda.time(), "received")), context=context_of(machine))
    agenda.run(lambda: len(said) == 2)
    assert said == [(2.0, "accepted"), (2.5, "received")]
