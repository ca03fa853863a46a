"""Which stores live in another engine is said in the file; what cannot be is refused with the place, what was found and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.cli.configuration.settings import Flags, load
from tandem.model.errors import ConfigurationError
from tandem.server.settings import ClusterSettings

_FIRST = '[cluster]\nengine = "postgresql://h/first"\nsecret_file = "secret"\n'


def engine(name: str = "second", dsn: str = "postgresql://h/second", stores: str = "[2, 3]", more: str = "") -> str:
    return f'[[cluster.more_engines]]\nname = "{name}"\nengine = "{dsn}"\nstores = {stores}\n{more}'


def cluster_of(directory: Path, text: str) -> ClusterSettings:
    (directory / "tandem.toml").write_text(text)
    found = load(Flags(), {}, directory).server.cluster
    assert found is not None
    return found


def test_a_store_is_in_the_engine_that_names_it_and_in_the_first_otherwise(tmp_path: Path) -> None:
    spaces = '[[namespace]]\nname = "old"\n[[namespace]]\nname = "new"\n'
    third = engine("third", "postgresql://h/third", "[0]", 'namespaces = ["new"]\n')
    found = cluster_of(tmp_path, _FIRST + engine() + third + spaces)
    assert [found.engine_of("old", number) for number in range(4)] == ["", "", "second", "second"]
    assert [found.engine_of("new", number) for number in range(4)] == ["third", "", "second", "second"]


def test_without_more_engines_every_store_is_in_the_first(tmp_path: Path) -> None:
    found = cluster_of(tmp_path, _FIRST)
    assert found.more_engines == ()
    assert found.engine_of("tandem", 3) == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (_FIRST + engine(stores="[2, 4]"), "tandem.toml:7: cluster.more_engines[0].stores: found 4; allowed is 0 to 3: stores.count is 4"),
        (_FIRST + engine(stores="[2, 2]"), "cluster.more_engines[0].stores: 2 is named twice"),
        (_FIRST + engine(stores="[]"), "cluster.more_engines[0].stores: found a list; allowed is a list"),
        (_FIRST + engine(stores='"2"'), 'cluster.more_engines[0].stores: found "2"; allowed is a list'),
        (
            _FIRST + engine() + engine("third", "postgresql://h/3", "[3]"),
            "tandem.toml:11: cluster.more_engines[1].stores: store 3 is in engine second",
        ),
        (
            _FIRST + engine() + engine("second", "postgresql://h/3", "[1]"),
            "cluster.more_engines[1].name: another engine is called second already",
        ),
        (_FIRST + engine("first"), 'cluster.more_engines[0].name: found "first"; allowed is another name'),
        (_FIRST + engine("a b"), 'cluster.more_engines[0].name: found "a b"; allowed is'),
        (
            _FIRST + engine(dsn="postgresql://h/first"),
            "tandem.toml:6: cluster.more_engines[0].engine: is the first one, cluster.engine, again",
        ),
        (
            _FIRST + engine() + engine("third", stores="[1]"),
            "cluster.more_engines[1].engine: is that of second again; allowed is another database",
        ),
        (
            _FIRST + engine(more='namespaces = ["other"]\n'),
            'cluster.more_engines[0].namespaces: found "other"; allowed is one of this file: tandem',
        ),
        (_FIRST + engine(more="port = 1\n"), "cluster.more_engines[0].port: there is no such setting here"),
        (_FIRST + '[[cluster.more_engines]]\nname = "second"\nstores = [1]\n', "cluster.more_engines[0]: engine is missing"),
        (_FIRST + '[cluster.more_engines]\nname = "second"\n', "cluster.more_engines: found a table; allowed is a list of tables"),
        (engine(), "cluster.more_engines[0]: needs cluster.engine (--cluster) as well"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        cluster_of(tmp_path, text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_refusal_shows_no_password(tmp_path: Path) -> None:
    dsn = "postgresql://u:hidden@h/first"
    with pytest.raises(ConfigurationError) as refused:
        cluster_of(tmp_path, f'[cluster]\nengine = "{dsn}"\nsecret_file = "s"\n' + engine(dsn=dsn))
    assert "hidden" not in str(refused.value)
