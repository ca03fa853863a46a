"""What a house weighs: `python tools/house_figures.py [CHECKOUT ...]` counts its source, side by side for several checkouts.

largest class         methods, by name, of a class and of everything it inherits from inside the source
foreign writes        assignments to a field of an object other than `self`, also through it (`self.link.credit = 1`)
import knots          circles among modules, imports under `TYPE_CHECKING` and inside functions included
class names reused    names that more than one class has
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ITSELF = ("self", "cls")

Graph = dict[str, set[str]]
Class = tuple[str, str]
"""Module and name."""


@dataclasses.dataclass(frozen=True)
class Figures:
    files: int
    lines: int
    largest_class: int
    largest_class_name: str
    foreign_writes: int
    import_knots: int
    class_names_reused: int


class Source:
    """The modules of one checkout, parsed."""

    def __init__(self, checkout: Path) -> None:
        root = checkout / "src"
        found = sorted((root / "tandem").rglob("*.py"))
        if not found:
            raise SystemExit(f"{checkout}: no src/tandem here")
        self.texts = {".".join(path.relative_to(root).with_suffix("").parts): path.read_text(encoding="utf-8") for path in found}
        self.trees = {name.removesuffix(".__init__"): ast.parse(text) for name, text in self.texts.items()}
        self.nodes = {name: list(ast.walk(tree)) for name, tree in self.trees.items()}
        self.packages = {name.removesuffix(".__init__") for name in self.texts if name.endswith(".__init__")}

    def imports(self, module: str) -> Iterator[tuple[str, str, str]]:
        """(module it comes from, name there, name here) of every import of ours; for a whole module the name there is empty."""
        package = module if module in self.packages else module.rpartition(".")[0]
        for node in self.nodes[module]:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, "", alias.asname or alias.name
            elif isinstance(node, ast.ImportFrom):
                start = package.split(".")
                begin = ".".join(start[: len(start) - node.level + 1]) if node.level else ""
                source = ".".join(part for part in (begin, node.module) if part)
                for alias in node.names:
                    inner = f"{source}.{alias.name}"
                    here = alias.asname or alias.name
                    yield (inner, "", here) if inner in self.trees else (source, alias.name, here)

    def graph(self) -> Graph:
        return {name: {source for source, _, _ in self.imports(name) if source in self.trees and source != name} for name in self.trees}


def circles(graph: Graph) -> list[list[str]]:
    """Strongly connected components of two and more, the largest first (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            at = stack.index(node)
            component, stack[at:] = stack[at:], []
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return sorted(found, key=lambda one: (-len(one), one))


def classes(source: Source) -> dict[Class, ast.ClassDef]:
    return {(module, node.name): node for module, nodes in source.nodes.items() for node in nodes if isinstance(node, ast.ClassDef)}


def towers(source: Source) -> dict[Class, set[str]]:
    """Names of the methods of each class, inherited ones included."""
    known = classes(source)
    own: dict[str, dict[str, Class]] = {module: {} for module in source.trees}
    for module, name in known:
        own[module][name] = (module, name)
    visible: dict[str, dict[str, Class]] = {}
    for module in source.trees:
        visible[module] = dict(own[module])
        for origin, name, here in source.imports(module):
            if (origin, name) in known:
                visible[module][here] = (origin, name)
            elif not name:
                visible[module] |= {f"{here}.{one}": which for one, which in own.get(origin, {}).items()}
    done: dict[Class, set[str]] = {}

    def methods(which: Class) -> set[str]:
        if which not in done:
            node = known[which]
            done[which] = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
            for base in node.bases:
                plain = base.value if isinstance(base, ast.Subscript) else base
                parent = visible[which[0]].get(ast.unparse(plain))
                if parent is not None and parent != which:
                    done[which] = done[which] | methods(parent)
        return done[which]

    for which in known:
        methods(which)
    return done


def written(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    """What is assigned to."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        for target in targets:
            yield from target.elts if isinstance(target, ast.Tuple | ast.List) else (target,)


def foreign_writes(nodes: list[ast.AST]) -> Iterator[ast.Attribute]:
    for target in written(nodes):
        if isinstance(target, ast.Attribute) and not (isinstance(target.value, ast.Name) and target.value.id in ITSELF):
            yield target


def reused(source: Source) -> dict[str, list[str]]:
    """Class name -> modules, where there are several."""
    modules: dict[str, list[str]] = {}
    for module, name in sorted(classes(source)):
        modules.setdefault(name, []).append(module)
    return {name: found for name, found in sorted(modules.items()) if len(found) > 1}


def figures(checkout: Path) -> Figures:
    source = Source(checkout)
    tower = towers(source)
    largest = max(tower, key=lambda which: len(tower[which]))
    return Figures(
        files=len(source.texts),
        lines=sum(len(text.splitlines()) for text in source.texts.values()),
        largest_class=len(tower[largest]),
        largest_class_name=".".join(largest).removeprefix("tandem."),
        foreign_writes=sum(1 for nodes in source.nodes.values() for _ in foreign_writes(nodes)),
        import_knots=len(circles(source.graph())),
        class_names_reused=len(reused(source)),
    )


def details(checkout: Path) -> Iterator[str]:
    """Where to begin: the ten tallest classes, the files that write most into others, each knot, each name that means several things."""
    source = Source(checkout)
    tower = towers(source)
    for which in sorted(tower, key=lambda one: -len(tower[one]))[:10]:
        yield f"{len(tower[which]):5} methods  {'.'.join(which)}"
    writes = {module: sum(1 for _ in foreign_writes(nodes)) for module, nodes in source.nodes.items()}
    for module in sorted(writes, key=lambda one: -writes[one])[:15]:
        yield f"{writes[module]:5} foreign writes  {module}"
    for circle in circles(source.graph()):
        yield f"{len(circle):5} in a knot  {' '.join(circle)}"
    for name, modules in reused(source).items():
        yield f"{len(modules):5} classes named {name}  {' '.join(modules)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[HERE])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--details", action="store_true", help="where the numbers come from")
    arguments = parser.parse_args()
    counted = {str(checkout): figures(checkout) for checkout in arguments.checkouts}
    if arguments.json:
        print(json.dumps({name: dataclasses.asdict(one) for name, one in counted.items()}, indent=2))
        return
    for field in dataclasses.fields(Figures):
        print(f"{field.name.replace('_', ' '):20}", *(f"{getattr(one, field.name)!s:>34}" for one in counted.values()))
    for checkout in arguments.checkouts if arguments.details else ():
        print(f"\n{checkout}", *details(checkout), sep="\n")


if __name__ == "__main__":
    main()
