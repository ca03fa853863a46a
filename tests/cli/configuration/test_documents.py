"""Where things stand in a file, and how complaints about them read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.cli.configuration import documents
from tandem.cli.configuration.setting_types import Integer, Text
from tandem.model.errors import ConfigurationError


def toml(tmp_path: Path, text: str) -> documents.Document:
    file = tmp_path / "tandem.toml"
    file.write_text(text)
    return documents.read(file)


def test_lines_of_toml_keys_are_found_under_every_kind_of_header(tmp_path: Path) -> None:
    document = toml(
        tmp_path,
        """# comment
data = "x"
a.b.c = 1

[stores]   # comment
count = 1

[[queue]]
name = '''
multi
line'''
lock = 1
[[queue]]
"name" = "b"
[[namespace]]
name = "n"
[[namespace.topic]]
name = "t"
[[namespace.topic.subscription]]
name = "s"
[[namespace.topic]]
name = "u"
[[namespace.topic.subscription]]
name = "v"
rules = [
  { name = "r1", sql = "1=1" },
  { name = "r2", sql = "[x]" },
]
""",
    )
    expected = {
        ("data",): 2,
        ("a", "b", "c"): 3,
        ("stores",): 5,
        ("stores", "count"): 6,
        ("queue", 0): 8,
        ("queue", 0, "name"): 9,
        ("queue", 0, "lock"): 12,
        ("queue", 1, "name"): 14,
        ("namespace", 0, "name"): 16,
        ("namespace", 0, "topic", 0, "subscription", 0, "name"): 20,
        ("namespace", 0, "topic", 1, "name"): 22,
        ("namespace", 0, "topic", 1, "subscription", 0, "name"): 24,
        ("namespace", 0, "topic", 1, "subscription", 0, "rules", 0, "sql"): 26,
        ("namespace", 0, "topic", 1, "subscription", 0, "rules", 1, "sql"): 27,
    }
    assert {path: document.line_of(path) for path in expected} == expected


def test_line_of_what_has_none_is_that_of_what_surrounds_it(tmp_path: Path) -> None:
    document = toml(tmp_path, "\n\n[stores]\ncount = 1\n")
    assert document.line_of(("stores", "missing")) == 3
    assert document.line_of(("missing",)) == 1


def test_refusal_names_file_line_key_found_and_allowed(tmp_path: Path) -> None:
    section = toml(tmp_path, "[stores]\ncount = 'many'\n").section().table("stores")
    assert section is not None
    with pytest.raises(ConfigurationError) as caught:
        section.get("count", Integer(1, 64))
    assert str(caught.value) == f'{tmp_path}/tandem.toml:2: stores.count: found "many"; allowed is a whole number from 1 to 64'


def test_unknown_key_brings_a_suggestion_and_the_list(tmp_path: Path) -> None:
    section = toml(tmp_path, "\ncuont = 1\n").section()
    section.get("count", Integer())
    section.get("other", Text())
    with pytest.raises(
        ConfigurationError, match=r"toml:2: cuont: there is no such setting here\. Did you mean count\? Allowed is count, other"
    ):
        section.finish()


def test_key_like_nothing_known_brings_the_list_alone(tmp_path: Path) -> None:
    section = toml(tmp_path, "zzz = 1\n").section()
    section.has("count")
    with pytest.raises(ConfigurationError, match=r"no such setting here\. Allowed is count$"):
        section.finish()


def test_missing_key_is_said_at_its_section(tmp_path: Path) -> None:
    section = toml(tmp_path, "\n[[queue]]\n").section().tables("queue")[0]
    with pytest.raises(ConfigurationError, match=r"toml:2: queue\[0\]: name is missing; it must be a text"):
        section.need("name", Text())


@pytest.mark.parametrize(("text", "method"), [("a = 1", "table"), ("a = {}", "tables"), ("a = [1]", "tables")])
def test_value_where_a_section_belongs_is_refused(tmp_path: Path, text: str, method: str) -> None:
    with pytest.raises(ConfigurationError, match=r"toml:1: a: found .*; allowed is a (table|list)"):
        getattr(toml(tmp_path, text).section(), method)("a")


@pytest.mark.parametrize(
    ("text", "line"), [("a = 1\nb = \n", 2), ("a = 1\na = 2\n", 2), ("[x\n", 1), ('a = "unfinished\n', 1), ("a = [1,\n2\n", 3)]
)
def test_toml_that_does_not_parse_names_the_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"tandem\.toml:{line}: is not valid TOML"):
        toml(tmp_path, text)


def test_json_that_does_not_parse_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    file.write_text('{\n "a": 1\n "b": 2 }')
    with pytest.raises(ConfigurationError, match=r"Config\.json:3: is not valid JSON: ',' or '}' is expected"):
        documents.read(file)
    file.write_text("[]")
    with pytest.raises(ConfigurationError, match="found a list; allowed is an object"):
        documents.read(file)


def test_json_keys_are_found_whatever_their_case_and_null_is_not_said(tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    file.write_text('{"USERconfig": {"Count": 3, "Other": null}}')
    section = documents.read(file).section().table("UserConfig")
    assert section is not None
    assert section.get("count", Integer()) == 3
    assert section.get("Other", Integer()) is None
    section.finish()


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml: cannot be read: No such file"):
        documents.read(tmp_path / "none.toml")
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        documents.read(tmp_path)
    file = tmp_path / "latin.toml"
    file.write_bytes(b"a = 1\nb = '\xe9'\n")
    with pytest.raises(ConfigurationError, match=r"latin\.toml:2: is not UTF-8"):
        documents.read(file)
    file.write_bytes(b"a = " + b"[" * 5000)
    with pytest.raises(ConfigurationError, match=r"latin\.toml:.*(not valid TOML|nested too deeply)"):
        documents.read(file)
