"""Writes the types of the classes without `await` (`sync.pyi`) from the asynchronous ones: `python tools/facade_stub.py`."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import subprocess
import sys
import textwrap
from dataclasses import is_dataclass
from pathlib import Path
from types import FunctionType, ModuleType

SOURCE = Path(__file__).resolve().parent.parent / "src"
sys.path.insert(0, str(SOURCE))

import tandem  # noqa: E402 - the path comes first
from tandem.client import sync  # noqa: E402
from tandem.client.facade import Facade  # noqa: E402
from tandem.client.relay import sync as relay_sync  # noqa: E402

MODULES = (sync, relay_sync)

HEAD = '"""The classes without `await`, as type checkers see them: generated from the asynchronous ones, `make docs` writes it again."""'


class Stub:
    """The text of the stub, as far as it is written, and the names it needs from elsewhere."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.imports: set[tuple[str, str, str]] = {("typing", "Any", "Any")}
        self.lines: list[str] = []

    def write(self) -> str:
        for name, made in vars(self.module).items():
            if made is FACADES.get(name):
                self._class(name, made)
        imports = [
            f"from {module} import {name}" + (f" as {known}" if known != name else "") for module, name, known in sorted(self.imports)
        ]
        modules = [line.replace("from  import ", "import ") for line in imports]
        return _formatted("\n".join([HEAD, "", *modules, "", *self.lines, ""]), path_of(self.module))

    def _class(self, name: str, made: type[Facade]) -> None:
        original = made._async_class
        self.imports.add((original.__module__, name, f"Async{name}"))
        self.lines += [f"class {name}:", f'    """{_first_line(original)}"""', f"    aio: Async{name}"]
        # Data classes are handed out, never made by an application.
        if not is_dataclass(original):
            self._method("__init__", original.__init__)
        for method, function in _public(made):
            self._method(method, function)
        for attribute, found in sorted(_properties(original).items()):
            self._property(attribute, found.returns, found.module)
        if hasattr(original, "__aenter__"):
            entered = self._text(_tree(original.__aenter__).returns, _module(original.__aenter__))
            self.lines.append(f"    def __enter__(self) -> {entered}: ...")
            self.lines.append("    def __exit__(self, *exception: object) -> None: ...")
        if hasattr(original, "__aiter__"):
            made = _tree(original.__aiter__).returns
            assert isinstance(made, ast.Subscript)
            self.lines.append(f"    def __iter__(self) -> Iterator[{self._text(made.slice, _module(original.__aiter__))}]: ...")
            self.imports.add(("collections.abc", "Iterator", "Iterator"))

    def _method(self, name: str, function: FunctionType) -> None:
        tree, module = _tree(function), _module(function)
        for argument in ast.walk(tree.args):
            if isinstance(argument, ast.arg) and argument.annotation is not None:
                argument.annotation = ast.Name(self._text(argument.annotation, module))
        tree.args.defaults = [ast.Constant(...) for _ in tree.args.defaults]
        tree.args.kw_defaults = [None if value is None else ast.Constant(...) for value in tree.args.kw_defaults]
        said = (ast.get_docstring(tree) or "").splitlines()
        if any(isinstance(decorator, ast.Name) and decorator.id == "classmethod" for decorator in tree.decorator_list):
            self.lines.append("    @classmethod")
        head = f"    def {name}({ast.unparse(tree.args)}) -> {self._text(tree.returns, module)}:"
        self.lines += [f"{head}", f'        """{said[0]}"""'] if said else [f"{head} ..."]

    def _property(self, name: str, returns: ast.expr | None, module: ModuleType) -> None:
        self.lines += ["    @property", f"    def {name}(self) -> {self._text(returns, module)}: ..."]

    def _text(self, annotation: ast.expr | None, module: ModuleType) -> str:
        """The annotation, after its names were imported. A name that stands for one of ours means the class without `await`."""
        if annotation is None:
            return "Any"
        for node in ast.walk(annotation):
            if isinstance(node, ast.Name) and node.id in FACADES:
                if FACADES[node.id].__module__ != self.module.__name__:
                    self.imports.add((FACADES[node.id].__module__, node.id, node.id))
            elif isinstance(node, ast.Name) and not hasattr(builtins, node.id):
                self.imports.add(_origin(node.id, module))
        return ast.unparse(annotation)


class Attribute:
    """A value that every object of a class has: its type, and the module whose names it is written in."""

    def __init__(self, returns: ast.expr | None, module: ModuleType) -> None:
        self.returns = returns
        self.module = module


def _first_line(original: type) -> str:
    """A sentence of the class's own words that fits into a line."""
    said = (original.__doc__ or "").splitlines()[0]
    return said if len(said) <= 120 else said[: said.rfind(" ", 0, 119)] + " …"


def _public(made: type[Facade]) -> list[tuple[str, FunctionType]]:
    """Methods, with the asynchronous functions behind them; with a function of their own where there is one."""
    methods = [(name, function) for name, function in sorted(vars(made).items()) if not name.startswith("_")]
    return [(name, inspect.unwrap(function)) for name, function in methods]


def _properties(original: type) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    for ancestor in reversed(original.__mro__[:-1]):
        made = vars(ancestor).get("__init__")
        if is_dataclass(ancestor):
            module = importlib.import_module(ancestor.__module__)
            kinds = {name: ast.parse(kind, mode="eval").body for name, kind in ancestor.__annotations__.items() if not name.startswith("_")}
            found |= {name: Attribute(kind, module) for name, kind in kinds.items()}
        elif made is not None:
            arguments = {one.arg: one.annotation for one in ast.walk(_tree(made).args) if isinstance(one, ast.arg)}
            for node in ast.walk(_tree(made)):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
                if isinstance(target, ast.Attribute) and not target.attr.startswith("_") and target.attr not in found:
                    kind = node.annotation if isinstance(node, ast.AnnAssign) else _type_of(node.value, arguments)
                    found[target.attr] = Attribute(kind, _module(made))
        for name, value in vars(ancestor).items():
            if isinstance(value, property) and not name.startswith("_"):
                found[name] = Attribute(_tree(value.fget).returns, _module(value.fget))
    return found


def _type_of(value: ast.expr, arguments: dict[str, ast.expr | None]) -> ast.expr | None:
    """What an assigned value says about its type; None if nothing."""
    if isinstance(value, ast.BoolOp):
        return _type_of(value.values[-1], arguments)
    if isinstance(value, ast.Constant) and value.value is not None:
        return ast.Name(type(value.value).__name__)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id[0].isupper():
        return value.func
    return arguments.get(value.id) if isinstance(value, ast.Name) else None


def _origin(name: str, module: ModuleType) -> tuple[str, str, str]:
    """(module, name there, name here) to import what `name` means in a module; an empty module for `import name`."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return node.module, alias.name, name
        elif isinstance(node, ast.Import) and any(alias.name == name for alias in node.names):
            return "", name, name
    return module.__name__, name, name


def _tree(function: object) -> ast.FunctionDef | ast.AsyncFunctionDef:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body  # type: ignore[arg-type]
    assert isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef))
    return tree


def _module(function: object) -> ModuleType:
    return importlib.import_module(getattr(function, "__module__"))  # noqa: B009


def _formatted(text: str, path: Path) -> str:
    for command in (["check", "--quiet", "--fix-only"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=SOURCE.parent).stdout
    return text


FACADES = {
    name: value for module in MODULES for name, value in vars(module).items() if inspect.isclass(value) and issubclass(value, Facade)
}


def path_of(module: ModuleType) -> Path:
    return SOURCE / f"{module.__name__.replace('.', '/')}.pyi"


def stubs() -> dict[Path, str]:
    return {path_of(module): Stub(module).write() for module in MODULES} | {FRONT: front()}


FRONT = SOURCE / "tandem" / "__init__.pyi"


def front() -> str:
    """The names of `tandem` itself, each from where it is loaded on first use."""
    offered = [name for name in dir(tandem) if not name.startswith("_") and name not in vars(tandem)]
    loaded = {name: FACADES[name].__module__ if name in FACADES else _AT_HOME.get(name, "tandem.aio") for name in offered}
    imports = [f"from {module} import {name}" for name, module in loaded.items()]
    return _formatted("\n".join([HEAD, *imports, f"__all__ = {offered!r}", "__version__: str", ""]), FRONT)


_AT_HOME = dict.fromkeys(tandem._OF_CLIENTS, "tandem.client.paired_blocking_client") | dict.fromkeys(
    tandem._SHARED_OF_RELAYS, "tandem.aio.relay"
)


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")
