"""Effects run in order and all of them, whatever one of them raises."""

from __future__ import annotations

from tandem.broker.ports import Effect


def run_effects(effects: list[Effect], error: BaseException | None) -> None:
    """All of them, in order, whatever one of them raises; the first exception is raised again at the end."""
    trouble: Exception | None = None
    for effect in effects:
        try:
            effect.done(error)
        except Exception as raised:  # noqa: BLE001 - raised again below: one bad effect must not silence the others
            trouble = trouble or raised
    if trouble is not None:
        raise trouble
