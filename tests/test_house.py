"""The rules of the house, read from the source itself: who may import whom, how long things get, what is never called."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.model.limits import Limits

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tandem"
FILES = sorted(path for path in PACKAGE.rglob("*.py"))

MAY_IMPORT: dict[str, frozenset[str]] = {
    "model": frozenset(),
    "amqp": frozenset(),
    "wire": frozenset(),
    "broker": frozenset({"model"}),
    "stores": frozenset({"model", "broker"}),
    # several processes that serve one namespace: who has which store, and how one reaches another
    "cluster": frozenset({"model", "amqp", "wire", "broker"}),
    "gateway": frozenset({"model", "amqp", "wire", "broker", "server", "relay", "tokens", "cluster", "tracing"}),
    # the process around the broker; `server/server.py` opens the doors, the doors use what surrounds them
    "server": frozenset({"model", "wire", "amqp", "broker", "gateway", "relay", "tokens", "cluster", "tracing"}),
    # whom to believe when somebody else issued the token
    "tokens": frozenset({"model"}),
    # spans for messages that carry a trace context
    "tracing": frozenset({"model"}),
    "issuer": frozenset({"model", "tokens", "wire"}),
    # hybrid connections: knows neither queues nor journals
    "relay": frozenset({"model"}),
    "client": frozenset({"model", "amqp", "wire", "tracing"}),
    # our own engine as a client, without asyncio: for tasks of Spark and for commands
    "engine_client": frozenset({"model", "amqp", "wire"}),
    # journals are read where they lie, with the code that writes them
    "spark": frozenset({"model", "client", "engine_client", "amqp", "stores", "broker", "tracing"}),
    "cli": frozenset(
        {
            "model",
            "amqp",
            "wire",
            "broker",
            "stores",
            "server",
            "gateway",
            "tokens",
            "tracing",
            "issuer",
            "client",
            "cluster",
            "engine_client",
            "spark",
            "demo",
            "testing",
            "aio",
        }
    ),
    "demo": frozenset({"client", "spark", "aio", "testing"}),
    "console": frozenset(),
    "testing": frozenset({"model", "broker", "stores", "server", "gateway", "cluster", "tracing"}),
    "simulator": frozenset({"model", "amqp", "broker", "stores", "server", "tokens", "client", "cluster"}),
    # Front doors: files and packages that only hand on what a room offers.
    "aio": frozenset({"model", "client"}),
    "__init__": frozenset({"model", "client"}),
    "__main__": frozenset({"cli"}),
}
STORES_MAY_IMPORT_OF_BROKER = frozenset({"ports", "facts"})
DOORS = ("gateway/amqp/", "gateway/http/")
"""They do not import each other: what both need stands beside them."""
COMPOSITION = "server/server.py"
"""The only file that knows both doors."""
STANDARD_LIBRARY_ONLY = ("model", "amqp", "broker")
ALWAYS_ALLOWED = frozenset({"mypy_extensions", "typing_extensions"})

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
# Both lists may only shrink: an entry says how long it is now, and goes when the thing fits.
LONG_FUNCTIONS: dict[str, int] = {}
LONG_FILES: dict[str, int] = {}

OUTSIDE_OF_TIME = ("model/clock.py", "testing/", "simulator/", "demo/", "cli/")
"""Only here may the machine's clock be read, dice be thrown, and anything be printed."""
FORBIDDEN_CALLS = frozenset(
    {
        "time.time",
        "time.time_ns",
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "datetime.datetime.today",
        "datetime.date.today",
        "date.today",
        "print",
    }
)
LEFTOVERS = ("FIX" + "ME", "TO" + "DO", "XX" + "X", "HA" + "CK")
NAMES_WE_DO_NOT_USE = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "base", "core", "misc"})


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def tree_of(path: Path) -> ast.Module:
    text = path.read_text(encoding="utf-8")
    try:
        return ast.parse(text, filename=str(path))
    except SystemError:
        # Python 3.11 miscounts its recursion when the garbage collector runs in the middle of a parse; the next one is right
        return ast.parse(text, filename=str(path))


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import, wherever it stands; relative ones resolved."""
    package = ["tandem", *path.relative_to(PACKAGE).with_suffix("").parts[:-1]]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}" if module == "tandem" or node.level else module
                if module.count(".") == 1 and module.startswith("tandem."):
                    yield node.lineno, f"{module}.{alias.name}"


def test_every_room_is_known() -> None:
    rooms = {room_of(path) for path in FILES}
    assert rooms <= set(MAY_IMPORT), "a new room needs its line in MAY_IMPORT"


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_room_imports_only_what_it_may(path: Path) -> None:
    room = room_of(path)
    wrong = []
    for line, module in imports_of(path):
        parts = module.split(".")
        if parts[0] != "tandem":
            if room in STANDARD_LIBRARY_ONLY and parts[0] not in sys.stdlib_module_names | ALWAYS_ALLOWED:
                wrong.append(f"line {line}: {room} uses the standard library only, not {parts[0]}")
            continue
        door = next((door for door in DOORS if name_of(path).startswith(door)), "")
        if door and "/".join(parts[1:3]) + "/" in set(DOORS) - {door}:
            wrong.append(f"line {line}: one door does not import the other")
        if room == "server" and name_of(path) != COMPOSITION and "/".join(parts[1:3]) + "/" in DOORS:
            wrong.append(f"line {line}: only {COMPOSITION} opens the doors")
        if room == "gateway" and "/".join(parts[1:3]) + ".py" == COMPOSITION:
            wrong.append(f"line {line}: a door is opened by {COMPOSITION} and does not know it")
        if len(parts) < 2 or parts[1] in (room, "__version__"):
            continue
        other = parts[1]
        if (PACKAGE / other).is_dir() or (PACKAGE / f"{other}.py").exists():
            if other not in MAY_IMPORT[room]:
                wrong.append(f"line {line}: {room} may not import {other}")
            elif room in ("stores", "spark") and other == "broker" and len(parts) > 2 and parts[2] not in STORES_MAY_IMPORT_OF_BROKER:
                wrong.append(f"line {line}: of broker, {room} may import only {', '.join(sorted(STORES_MAY_IMPORT_OF_BROKER))}")
    assert wrong == []


def test_sections_of_messages_are_found_in_one_place_only() -> None:
    """Two readers of one grammar disagree sooner or later: outside of `amqp` nobody reads descriptors."""
    readers = [name_of(path) for path in FILES if room_of(path) != "amqp" and "read_descriptor" in path.read_text(encoding="utf-8")]
    assert readers == []


def module_of(path: Path) -> str:
    return ".".join(["tandem", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


def loaded_by(path: Path, modules: set[str]) -> set[str]:
    """Modules of ours that are loaded when this one is: those it names outside of functions, and the packages that they and it are in."""
    found: set[str] = set()
    body: list[ast.AST] = [*tree_of(path).body]
    while body:
        node = body.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        ):
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
            start = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (start, node.module) if part)
            found.update({module, *(f"{module}.{alias.name}" for alias in node.names)})
        body += ast.iter_child_nodes(node)
    found.add(module_of(path).rpartition(".")[0])
    packages = {name[: at.start()] for name in found for at in re.finditer(r"\.", name)}
    return (found | packages) & modules - {module_of(path)}


def modules_in_circles() -> list[str]:
    modules = {module_of(path) for path in FILES}
    loads = {module_of(path): loaded_by(path, modules) for path in FILES}

    def reaches_itself(module: str) -> bool:
        seen, next_ones = set[str](), [*loads[module]]
        while next_ones:
            if (one := next_ones.pop()) not in seen:
                seen.add(one)
                next_ones += loads[one]
        return module in seen

    return sorted(filter(reaches_itself, modules))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_module_imports_alone() -> None:
    """No module leans on another's being first. One that does is in a circle of imports, or enters one: so those in circles are imported
    each in a process of its own, forked before anything of ours is loaded, and all the others in two, in both orders. What others wrote is
    loaded once, before the first fork."""
    circles = modules_in_circles()
    every = sorted(module_of(path) for path in FILES)
    modules = [*([one] for one in circles), every, every[::-1]]
    others = sorted({module for path in FILES for _, module in imports_of(path) if module.split(".")[0] not in ("tandem", "__future__")})
    script = (
        "import contextlib, importlib, json, os, sys, traceback\n"
        "for module in json.loads(sys.argv[2]):\n"
        "    with contextlib.suppress(ImportError):\n"
        "        importlib.import_module(module)\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'tandem']\n"
        "failed = {}\n"
        "for modules in json.loads(sys.argv[1]):\n"
        "    reader, writer = os.pipe()\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        code = 0\n"
        "        for module in modules:\n"
        "            try:\n"
        "                importlib.import_module(module)\n"
        "            except BaseException as error:\n"
        "                lacks = error.name if isinstance(error, ModuleNotFoundError) else ''\n"
        "                if (lacks or '').split('.')[0] not in ('pyspark', 'pyarrow', 'pandas'):\n"
        "                    code = 1\n"
        "                    os.write(writer, traceback.format_exc().encode()[-2000:])\n"
        "        os._exit(code)\n"
        "    os.close(writer)\n"
        "    said = os.read(reader, 4000).decode()\n"
        "    os.close(reader)\n"
        "    if os.waitpid(child, 0)[1]:\n"
        "        failed[modules[0]] = said\n"
        "print(json.dumps(failed))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(modules), json.dumps(others)], capture_output=True, text=True, timeout=580, check=True
    )
    assert json.loads(done.stdout) == {}


def functions_of(path: Path) -> Iterator[tuple[str, int]]:
    """(name, lines without docstring) of every function and method."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                lines -= (first.end_lineno or first.lineno) - first.lineno + 1
            yield f"{name_of(path)}:{node.name}", lines


@pytest.mark.slow
def test_functions_stay_short_enough_to_read() -> None:
    long = {name: lines for path in FILES for name, lines in functions_of(path) if lines > FUNCTION_LINES_MAX}
    assert {name: lines for name, lines in long.items() if lines > LONG_FUNCTIONS.get(name, 0)} == {}
    assert set(LONG_FUNCTIONS) - set(long) == set(), "these fit now: take them off the list"


def test_files_stay_short_enough_to_read() -> None:
    long = {name_of(path): lines for path in FILES if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX}
    assert {name: lines for name, lines in long.items() if lines > LONG_FILES.get(name, 0)} == {}
    assert set(LONG_FILES) - set(long) == set(), "these fit now: take them off the list"


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


@pytest.mark.parametrize("path", [path for path in FILES if not name_of(path).startswith(OUTSIDE_OF_TIME)], ids=name_of)
def test_clock_dice_and_terminal_are_handed_in(path: Path) -> None:
    wrong = [
        f"line {node.lineno}: {dotted(node.func)}()"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and dotted(node.func) in FORBIDDEN_CALLS
    ]
    wrong += [f"line {line}: import random" for line, module in imports_of(path) if module.split(".")[0] == "random"]
    assert wrong == []


ORDERED_SLICES: dict[str, set[str]] = {
    "amqp/codec.py": {"buf[start:end]", "self.buf[at:at + n]"},
    "amqp/connection.py": {"data[at:]", "data[at:at + 4]", "data[at:at + 8]", "data[at:at + missing]"},
    "amqp/dispositions.py": {"buf[at:list_end]", "buf[tail_at:list_end]"},
    "amqp/message.py": {
        "payload[self.app_properties_at:self.app_properties_end]",
        "payload[self.body_at:self.body_end]",
        "payload[self.footer_at:self.footer_end]",
        "payload[self.properties_at:self.properties_end]",
        "payload[start:]",
    },
    "amqp/transfers.py": {
        "buf[at + 2:tag_end]",
        "buf[list_end:end]",
        "buf[tag_end:list_end]",
        "view[w.sent:w.sent + room]",
    },
    "gateway/translate.py": {
        "bare[end:]",
        "bare[s.properties_end:]",
        "buf[at:end]",
        "buf[key_at + 2:value_at]",
        "buf[key_at:at]",
        "buf[key_at:value_at]",
        "buf[name_at:value_at]",
        "buf[start:at]",
        "buf[value_at:at]",
        "payload[end:]",
        "payload[s.header_value:s.header_end]",
        "payload[value:end]",
    },
}
"""Slices of what peers send, in compiled modules, whose bounds are in order by what was checked before: begin <= end, length."""


def test_slices_of_what_peers_send_are_checked_or_known_to_be_in_order() -> None:
    """Compiled, a slice that begins behind its end is a SystemError that costs the connection; `amqp.codec.part` makes it empty."""
    hot = re.findall(r'"((?:amqp|gateway)/[\w/]+\.py)"', (ROOT / "setup.py").read_text(encoding="utf-8"))
    found: dict[str, set[str]] = {}
    for name in hot:
        for node in ast.walk(tree_of(PACKAGE / name)):
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
                begin = node.slice.lower
                if begin is not None and not isinstance(begin, ast.Constant):
                    found.setdefault(name, set()).add(ast.unparse(node))
    assert found == ORDERED_SLICES


HOT_WITHOUT_A_TEST_OF_THEIR_OWN = frozenset(
    {
        "amqp/answers.py",
        "amqp/errors.py",
        "amqp/fields.py",
        "amqp/frames.py",
        "amqp/handlers.py",
        "amqp/numbers.py",
        "amqp/terminus.py",
        "broker/entities/joined.py",
        "broker/ports.py",
        "broker/queue/bodies.py",
        "broker/queue/browsing.py",
        "broker/queue/entity.py",
        "broker/queue/intake.py",
        "broker/queue/lease.py",
        "broker/queue/ledger.py",
        "broker/queue/moves.py",
        "broker/queue/ready.py",
        "broker/queue/rows.py",
        "broker/queue/selective.py",
        "broker/queue/session_holding.py",
        "broker/queue/terms.py",
        "broker/recovery/operations.py",
        "broker/recovery/relocation.py",
        "broker/recovery/tenant.py",
        "broker/rules/sql_values.py",
        "gateway/amqp/answers.py",
        "gateway/amqp/connection.py",
        "gateway/amqp/sending_once.py",
        "model/histogram.py",
        "model/message.py",
        "stores/blocks.py",
        "stores/body_reader.py",
        "stores/committer.py",
        "stores/compaction.py",
        "stores/fetching.py",
        "stores/maintenance.py",
        "stores/scan.py",
        "stores/segment_index.py",
        "stores/synced.py",
    }
)
"""Tested through their neighbours. May only shrink: a new hot module comes with `tests/<room>/test_<file>.py`."""


def test_hot_modules_have_tests_of_their_own() -> None:
    """Who breaks one learns it from its own test, not from an SDK's over a socket."""
    product = (ROOT / "setup.py").read_text(encoding="utf-8").partition("SIMULATOR_MODULES")[0]
    hot = re.findall(r'^    "([a-z_0-9/]+)\.py",$', product, re.M)
    without = {f"{name}.py" for name in hot if not (ROOT / "tests" / Path(name).parent / f"test_{Path(name).name}.py").exists()}
    assert without - HOT_WITHOUT_A_TEST_OF_THEIR_OWN == set(), "write their tests"
    assert HOT_WITHOUT_A_TEST_OF_THEIR_OWN - without == set(), "take them off the list"


@pytest.mark.slow
def test_every_limit_is_read_somewhere() -> None:
    """A limit that nobody reads is a promise that nobody keeps."""
    read = {
        node.attr
        for path in FILES
        if name_of(path) != "model/limits.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and dotted(node.value).rpartition(".")[2] in ("limits", "_limits")
    }
    assert {field.name for field in dataclasses.fields(Limits)} - read == set()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_error_is_swallowed_and_nothing_is_left_unfinished(path: Path) -> None:
    wrong = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or dotted(node.type) in ("Exception", "BaseException")
            if node.type is None:
                wrong.append(f"line {node.lineno}: bare except")
            elif broad and all(isinstance(inner, ast.Pass | ast.Continue) for inner in node.body):
                wrong.append(f"line {node.lineno}: an error is swallowed")
        elif isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if dotted(raised) == "NotImplementedError":
                wrong.append(f"line {node.lineno}: NotImplementedError")
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT and any(word in token.string for word in LEFTOVERS):
                wrong.append(f"line {token.start[0]}: {token.string}")
    assert wrong == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_module_says_in_its_first_line_what_it_promises(path: Path) -> None:
    assert path.stem not in NAMES_WE_DO_NOT_USE, "files are named after what they are about"
    said = ast.get_docstring(tree_of(path))
    assert said and said.splitlines()[0].endswith((".", ":", ";", "?")), "the first line is one sentence"


def test_nothing_mentions_the_machine_it_was_written_on() -> None:
    places = [ROOT / name for name in ("src", "tests", "docs", "tools", "benchmarks", ".ci")]
    files = [path for place in places for path in place.rglob("*") if path.is_file() and "node_modules" not in path.parts]
    files += [path for path in ROOT.iterdir() if path.suffix in (".md", ".toml", ".py") or path.name == "Makefile"]
    words = ("/wo" + "rk/", "/ro" + "ot/")
    wrong = []
    for path in files:
        if path.suffix in (".py", ".md", ".toml", ".json", ".js", ".html", ".css", ".sh", "") and "__pycache__" not in path.parts:
            text = path.read_text(encoding="utf-8", errors="replace")
            wrong += [f"{path.relative_to(ROOT)}: {word}" for word in words if word in text]
    assert wrong == []


def test_rules_themselves_catch_what_they_are_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above run on our source, where they find nothing; here they are shown something to find."""
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    bad = tmp_path / "model" / "bad.py"
    bad.parent.mkdir()
    (tmp_path / "broker").mkdir()
    (tmp_path / "stores").mkdir()
    bad.write_text("from tandem import broker\nimport time, requests\ntry:\n    time.time()\nexcept:\n    pass\n# FIX" + "ME\n")
    for check in (test_room_imports_only_what_it_may, test_clock_dice_and_terminal_are_handed_in):
        with pytest.raises(AssertionError):
            check(bad)
    with pytest.raises(AssertionError, match="bare except"):
        test_no_error_is_swallowed_and_nothing_is_left_unfinished(bad)
    with pytest.raises(AssertionError):
        test_module_says_in_its_first_line_what_it_promises(bad)
    door = tmp_path / "gateway" / "http" / "bad.py"
    door.parent.mkdir(parents=True)
    door.write_text("from tandem.gateway.amqp.sending import Sending\n")
    with pytest.raises(AssertionError, match="one door does not import the other"):
        test_room_imports_only_what_it_may(door)
    (tmp_path / "server").mkdir()
    door.write_text("from tandem.server.server import Server\n")
    with pytest.raises(AssertionError, match="does not know it"):
        test_room_imports_only_what_it_may(door)
    chore = tmp_path / "server" / "bad.py"
    chore.write_text("from tandem.gateway.http import rest\n")
    with pytest.raises(AssertionError, match="opens the doors"):
        test_room_imports_only_what_it_may(chore)
    store = tmp_path / "stores" / "bad.py"
    store.write_text("from tandem.broker.queue.queue import Queue\n")
    with pytest.raises(AssertionError, match="stores may import only"):
        test_room_imports_only_what_it_may(store)
    store.write_text("from tandem.broker import ports\nfrom tandem.broker.facts import Fact\n")
    test_room_imports_only_what_it_may(store)
