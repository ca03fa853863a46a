"""Draws the rooms as they are: the picture in docs/internals/architecture.md from the real imports, the table in CONTRIBUTING.md from the
rule that tests/test_house.py enforces. `python tools/rooms_map.py` writes both, `--check` says whether they are up to date.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from house_figures import HERE, Graph, Source, circles

ARCHITECTURE = HERE / "docs" / "internals" / "architecture.md"
CONTRIBUTING = HERE / "CONTRIBUTING.md"
HOUSE_TEST = HERE / "tests" / "test_house.py"
FRONT_DOORS = ("__main__", "tandem", "aio", "console")
"""Files that only hand on what a room offers, or that no Python imports."""


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def rooms(source: Source) -> Graph:
    """Who imports whom, by room, whatever the kind of import."""
    found: Graph = {room_of(module): set() for module in source.trees if room_of(module) not in FRONT_DOORS}
    for module, others in source.graph().items():
        if room_of(module) in found:
            found[room_of(module)] |= {room_of(other) for other in others} & set(found) - {room_of(module)}
    return found


def reduced(graph: Graph) -> Graph:
    """Without the edges that a longer way says already. What imports each other keeps both edges."""
    together = {room: frozenset(circle) for circle in circles(graph) for room in circle}

    def reach(start: str, without: str) -> set[str]:
        """From the neighbours of `start` other than `without` and whatever those two are knotted with."""
        seen: set[str] = set()
        knotted = together.get(start, frozenset()) | together.get(without, frozenset({without}))
        waiting = [other for other in graph[start] if other not in knotted]
        while waiting:
            room = waiting.pop()
            if room not in seen:
                seen.add(room)
                waiting += graph[room]
        return seen

    return {room: {other for other in others if other not in reach(room, other)} for room, others in graph.items()}


def picture(source: Source) -> str:
    graph = reduced(rooms(source))
    lines = ["```mermaid", "flowchart TD"]
    for room in sorted(graph):
        for other in sorted(graph[room]):
            if room not in graph[other]:
                lines.append(f"    {room} --> {other}")
            elif room < other:
                lines.append(f"    {room} <--> {other}")
    return "\n".join([*lines, "```"])


def promises(source: Source) -> str:
    """Each room's own first line."""
    rows = ["| room | what it is |", "|---|---|"]
    for room in sorted(rooms(source)):
        said = (ast.get_docstring(source.trees[f"tandem.{room}"]) or "").splitlines()[0]
        name = f"{room}/" if f"tandem.{room}" in source.packages else f"{room}.py"
        rows.append(f"| `{name}` | {said} |")
    return "\n".join(rows)


def may_import(text: str) -> dict[str, list[str]]:
    """The dictionary MAY_IMPORT of tests/test_house.py."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "MAY_IMPORT" and isinstance(node.value, ast.Dict):
            return {
                str(ast.literal_eval(key)): sorted(ast.literal_eval(value.args[0])) if value.args else []
                for key, value in zip(node.value.keys, node.value.values, strict=True)
                if key is not None and isinstance(value, ast.Call)
            }
    raise SystemExit(f"{HOUSE_TEST}: there is no MAY_IMPORT")


def rule(text: str) -> str:
    allowed = {room: others for room, others in may_import(text).items() if room not in (*FRONT_DOORS, "__init__")}
    width = max(map(len, allowed))
    return "\n".join(["```", *(f"{room:{width}} -> {' '.join(others) or '(nothing)'}" for room, others in allowed.items()), "```"])


def replaced(text: str, name: str, content: str) -> str:
    """Between `<!-- name -->` and `<!-- /name -->`."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"the marks of {name!r} are missing")
    return f"{head}{begin}{content}\n{end}{tail}"


def pages() -> dict[Path, str]:
    """What each page should say."""
    source = Source(HERE)
    architecture = replaced(ARCHITECTURE.read_text(encoding="utf-8"), "rooms", picture(source))
    return {
        ARCHITECTURE: replaced(architecture, "promises", promises(source)),
        CONTRIBUTING: replaced(CONTRIBUTING.read_text(encoding="utf-8"), "rooms", rule(HOUSE_TEST.read_text(encoding="utf-8"))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    stale = [path for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    if not arguments.check:
        for path in stale:
            path.write_text(pages()[path], encoding="utf-8")
    elif stale:
        raise SystemExit(f"not up to date: {', '.join(str(path.relative_to(HERE)) for path in stale)}; run python tools/rooms_map.py")


if __name__ == "__main__":
    main()
