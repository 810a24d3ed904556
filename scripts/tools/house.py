"""Measures a package: sizes, annotations, docstrings, imports, and habits that the rules of style limit.

``python scripts/tools/house.py [--classes] [FOLDER]`` prints a table and always ends with 0. Without a folder, it
measures the provider. Tables of two commits can be compared. Counts of lines include blank ones. A function's length is
that of its definition without decorators. With ``--classes`` the table has the class names of several modules instead.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path

from identifiers import DIALECT, definitions, dialect, missing
from prose import BANNED, OPENINGS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_provider_dtrain"
LONG_FILE, LONG_FUNCTION, LONG_LINE, MANY_PARAMETERS = 400, 40, 100, 6
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Imports:
    """Modules of the package that one module imports, by the place of the statement."""

    top: set[str] = field(default_factory=set)
    inside_functions: int = 0
    type_checking: int = 0
    everywhere: set[str] = field(default_factory=set)


class Module:
    """One parsed file of the package.

    :param name: dotted, beginning with the package's name
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.text = path.read_text()
        self.lines = self.text.splitlines()
        self.tree = ast.parse(self.text)
        self.nodes = list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and methods, nested ones too."""
        return [node for node in self.nodes if isinstance(node, Function)]

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """All classes, nested ones too."""
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def docstrings(self) -> list[str]:
        """Docstrings of the module, its classes and its functions."""
        found = (ast.get_docstring(node) for node in [self.tree, *self.classes, *self.functions])
        return [text for text in found if text]

    @cached_property
    def docstring_lines(self) -> int:
        """Lines that docstrings cover."""
        owners = [self.tree, *self.classes, *self.functions]
        return sum(length(owner.body[0]) for owner in owners if ast.get_docstring(owner))

    @cached_property
    def comment_lines(self) -> int:
        """Lines that begin with a comment."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return sum(one.type == tokenize.COMMENT and one.line.lstrip().startswith("#") for one in tokens)

    @cached_property
    def code_lines(self) -> int:
        """Lines that are neither blank, nor comments, nor docstrings."""
        return sum(bool(line.strip()) for line in self.lines) - self.comment_lines - self.docstring_lines

    def imports(self, modules: set[str]) -> Imports:
        """Return the imports of modules of the package."""
        found = Imports()
        for node, place in placed(self.tree, "top"):
            names = set(imported(node, modules)) - {self.name}
            if not names:
                continue
            found.everywhere |= names
            if place == "top":
                found.top |= names
            elif place == "function":
                found.inside_functions += 1
            else:
                found.type_checking += 1
        return found


def placed(node: ast.AST, place: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield all nodes below a node with their place: "top", "function" or "typing"."""
    for child in ast.iter_child_nodes(node):
        inner = place
        if isinstance(child, Function):
            inner = "function"
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            inner = "typing"
        yield child, inner
        yield from placed(child, inner)


def imported(node: ast.AST, modules: set[str]) -> list[str]:
    """Return the modules of the package that a statement imports."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        members = (f"{node.module}.{alias.name}" for alias in node.names)
        names = [one if one in modules else node.module for one in members]
    return [name for name in names if name in modules]


def length(node: ast.AST) -> int:
    """Return the number of lines of a statement."""
    return (node.end_lineno or 0) - node.lineno + 1  # type: ignore[attr-defined]


def parameters(function: Function) -> list[ast.arg]:
    """Return the parameters of a function without ``self`` and ``cls``."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    more = [one for one in (arguments.vararg, arguments.kwarg) if one]
    return [one for one in [*named, *more] if one.arg not in ("self", "cls")]


def modules_of(package: Path) -> list[Module]:
    """Return the modules of a package, by name."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found.append(Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def spread(values: Iterable[int]) -> str:
    """Return median, 90th percentile and maximum."""
    found = sorted(values) or [0]
    return " / ".join(str(found[min(len(found) - 1, int(len(found) * part))]) for part in (0.5, 0.9, 1.0))


def share(part: int, whole: int) -> str:
    """Return a count and its share."""
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "0 of 0"


def most(named: Mapping[str, int], count: int = 3) -> str:
    """Return the highest entries."""
    ordered = sorted(named.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {number}" for name, number in ordered[:count] if number) or "none"


def cycles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    reached = {name: reachable(name, arrows) for name in arrows}
    groups = {frozenset({name, *(one for one in reached[name] if name in reached[one])}) for name in arrows}
    return sorted((sorted(group) for group in groups if len(group) > 1), key=len, reverse=True)


def reachable(start: str, arrows: Mapping[str, set[str]]) -> set[str]:
    """Return the modules that are imported by a module, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = arrows.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def folder_arrows(imports: Mapping[str, Imports]) -> dict[str, int]:
    """Return the number of pairs of folders per layer in which one imports the other.

    The modules of a layer outside its folders count as one folder.
    """
    pairs: dict[str, set[tuple[str, str]]] = {}
    for name, found in imports.items():
        for target in found.everywhere:
            source, aim = room(name), room(target)
            if source[0] == aim[0] and source != aim:
                pairs.setdefault(source[0], set()).add((source[1], aim[1]))
    return {layer: len(found) for layer, found in pairs.items()}


def room(module: str) -> tuple[str, str]:
    """Return layer and folder of a module."""
    _, layer, folder, *_ = [*module.split(".")[:-1], "", "", ""]
    return layer, folder


Rows = Iterator[tuple[str, str]]


def sizes(modules: Sequence[Module]) -> Rows:
    """Yield the rows about files, functions and classes."""
    lengths = {one.name: len(one.lines) for one in modules}
    functions = [length(function) for one in modules for function in one.functions]
    yield "files / lines", f"{len(modules)} / {sum(lengths.values())}"
    yield "file median, non-empty / p90 / max", spread(filter(None, lengths.values()))
    yield f"files over {LONG_FILE}", most({name: lines for name, lines in lengths.items() if lines > LONG_FILE}, 10)
    yield "function median / p90 / max", spread(functions)
    yield f"functions over {LONG_FUNCTION} lines", share(sum(one > LONG_FUNCTION for one in functions), len(functions))
    classes = {f"{one.name}.{found.name}": found for one in modules for found in one.classes}
    yield "longest classes, lines", most({name: length(found) for name, found in classes.items()})
    methods = {name: sum(isinstance(one, Function) for one in found.body) for name, found in classes.items()}
    yield "longest classes, methods", most(methods)
    own = {found.name for found in classes.values()}
    mixed = [name for name, found in classes.items() if sum(ast.unparse(base) in own for base in found.bases) > 1]
    yield "classes with several bases of the package", str(len(mixed))


def signatures(modules: Sequence[Module]) -> Rows:
    """Yield the rows about annotations and parameters."""
    functions = {f"{one.name}:{found.lineno}": found for one in modules for found in one.functions}
    every = [found for one in modules for found in one.functions]
    arguments = [argument for function in every for argument in parameters(function)]
    counts = [len(parameters(function)) for function in every]
    yield "return annotations", share(sum(one.returns is not None for one in every), len(every))
    yield "parameter annotations", share(sum(one.annotation is not None for one in arguments), len(arguments))
    yield "parameters median / p90 / max", spread(counts)
    yield f"functions over {MANY_PARAMETERS} parameters", share(sum(n > MANY_PARAMETERS for n in counts), len(every))
    yield "longest parameter lists", most({name: len(parameters(found)) for name, found in functions.items()})


def texts(modules: Sequence[Module]) -> Rows:
    """Yield the rows about comments, docstrings and banned words."""
    lines = sum(len(one.lines) for one in modules)
    public = [found for one in modules for found in one.functions if not found.name.startswith("_")]
    docstrings = list(chain.from_iterable(one.docstrings for one in modules))
    firsts = [text.splitlines()[0] for text in docstrings]
    comments = sum(one.comment_lines for one in modules)
    yield "comment lines, of code lines", share(comments, sum(one.code_lines for one in modules))
    yield "docstring lines, of all lines", share(sum(one.docstring_lines for one in modules), lines)
    yield "public functions with docstring", share(sum(bool(ast.get_docstring(one)) for one in public), len(public))
    yield "first docstring line, words median / p90 / max", spread(len(one.split()) for one in firsts)
    yield "first docstring lines with a semicolon", share(sum(";" in one for one in firsts), len(firsts))
    questions = sum(bool(OPENINGS.match(one)) for one in firsts)
    yield "docstrings that open with What, Who, How ...", share(questions, len(firsts))
    yield "banned words", str(sum(len(BANNED.findall(one.text)) for one in modules))


def graph(modules: Sequence[Module]) -> Rows:
    """Yield the rows about imports."""
    names = {one.name for one in modules}
    imports = {one.name: one.imports(names) for one in modules}
    fan_in = Counter(chain.from_iterable(found.everywhere for found in imports.values()))
    yield "internal fan-out median / p90 / max", spread(len(found.everywhere) for found in imports.values())
    yield "highest fan-in", most(fan_in)
    yield "imports inside functions", str(sum(found.inside_functions for found in imports.values()))
    yield "imports under TYPE_CHECKING", str(sum(found.type_checking for found in imports.values()))
    for label, arrows in (
        ("cycles at load", {name: found.top for name, found in imports.items()}),
        ("cycles with all imports", {name: found.everywhere for name, found in imports.items()}),
    ):
        groups = cycles(arrows)
        yield label, "; ".join(f"{len(group)} modules with {group[0]}" for group in groups) or "none"
    yield "arrows between folders of a layer", most(folder_arrows(imports), 20)


def habits(modules: Sequence[Module]) -> Rows:
    """Yield the rows about habits of formatting and of names."""
    lines = list(chain.from_iterable(one.lines for one in modules))
    assignments = [node for one in modules for node in one.nodes if isinstance(node, ast.Assign)]
    pairs = sum(isinstance(one.targets[0], ast.Tuple) and isinstance(one.value, ast.Tuple) for one in assignments)
    gerunds = [one.name for one in modules if one.name.rpartition(".")[2].endswith("ing")]
    yield "# fmt: skip", str(sum("# fmt: skip" in line for line in lines))
    yield "a, b = x, y of all assignments", share(pairs, len(assignments))
    yield f"lines over {LONG_LINE} characters", share(sum(len(line) > LONG_LINE for line in lines), len(lines))
    yield "gerund module names", ", ".join(gerunds) or "none"


def vocabulary(modules: Sequence[Module], package: Path) -> Rows:
    """Yield the rows about words in names, and about names that stand for several things or for none."""
    defined = [one.name for module in modules for one in definitions(module.tree)]
    odd = Counter(word for name in defined for word in set(dialect(name)) & DIALECT)
    per_thousand = 1000 * odd.total() / len(defined) if defined else 0.0
    yield "dialect words per 1,000 identifiers", f"{per_thousand:.1f}"
    yield "dialect words, most frequent", most(odd, 10)
    places = class_places(modules)
    shared = {name: len(where) for name, where in places.items() if len(where) > 1}
    yield "class names in several files", f"{len(shared)} of {len(places)}: {most(shared, 5)}"
    absent = [name for module in modules for _, name in missing(module.tree, package)]
    yield "names in docstrings that do not exist", ", ".join(absent) or "none"
    classes = list(chain.from_iterable(one.classes for one in modules))
    yield "record classes", share(sum(map(is_record, classes)), len(classes))
    texts = (ast.unparse(node) for module in modules for node in module.nodes if isinstance(node, ast.Subscript))
    yield "dict[str, Any]", str(sum(text == "dict[str, Any]" for text in texts))


def class_places(modules: Sequence[Module]) -> dict[str, set[str]]:
    """Return the modules that define a class, by the name of the class."""
    places: dict[str, set[str]] = {}
    for module in modules:
        for found in module.classes:
            places.setdefault(found.name, set()).add(module.name)
    return places


def shared_names(modules: Sequence[Module]) -> dict[str, str]:
    """Return the class names that occur in several modules, each with these modules."""
    places = sorted(class_places(modules).items())
    return {name: ", ".join(sorted(where)) for name, where in places if len(where) > 1}


def is_record(found: ast.ClassDef) -> bool:
    """Return whether a class is a record: a dataclass, a named tuple, a typed dictionary or a model."""
    decorators = [ast.unparse(one) for one in found.decorator_list]
    bases = {ast.unparse(base).rpartition(".")[2] for base in found.bases}
    is_dataclass = any(one.rpartition(".")[2].startswith("dataclass") for one in decorators)
    return is_dataclass or bool(bases & {"NamedTuple", "TypedDict", "BaseModel", "Model"})


def measures(package: Path) -> dict[str, str]:
    """Return the rows of the table: what is measured, and its value."""
    modules = modules_of(package)
    parts = chain.from_iterable(part(modules) for part in (sizes, signatures, texts, graph, habits))
    return dict(chain(parts, vocabulary(modules, package)))


def main(arguments: Sequence[str]) -> int:
    folders = [one for one in arguments if one != "--classes"]
    package = Path(folders[0]).resolve() if folders else PACKAGE
    rows = shared_names(modules_of(package)) if "--classes" in arguments else measures(package)
    width = max(map(len, rows), default=0)
    for label, value in rows.items():
        print(f"{label:<{width}}  {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
