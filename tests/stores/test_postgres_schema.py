"""What a cluster keeps in PostgreSQL is made whole, whenever whoever makes it is interrupted."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tandem.model.errors import ConfigurationError, EngineAway
from tandem.stores.postgres_connection import EngineConnection, Hosts
from tandem.stores.postgres_schema import Schema
from tests.postgres import SECRET
from tests.stores.harness import ManualClock


class BreakingConnection(EngineConnection):
    """Its line breaks after so many statements, which the engine has carried out."""

    def __init__(self, dsn: str, statements: int) -> None:
        super().__init__(Hosts(dsn), "test", ManualClock())
        self.left = statements

    def execute(self, *arguments: Any, **named: Any) -> Any:
        done = super().execute(*arguments, **named)
        self.left -= 1
        if self.left == 0:
            raise EngineAway("the line broke")
        return done


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_cluster_whose_making_was_interrupted_is_made_by_the_next_one(database: str) -> None:
    again = EngineConnection(Hosts(database), "test", ManualClock())
    for statements in itertools.count(1):
        broken = BreakingConnection(database, statements)
        try:
            Schema(database, broken).initialize(SECRET)
        except ConfigurationError as error:
            assert "the line broke" in str(error)
        finally:
            broken.close()
        if broken.left > 0:
            break
        schema = Schema(database, again)
        schema.initialize(SECRET)
        schema.check(SECRET)
        assert schema.initialize(SECRET) is False
        again.execute("DROP SCHEMA tandem CASCADE", prepare=False)
        again.close()  # what it has prepared is of the tables that went
    assert statements > 10
    again.close()
