"""Reads the house from its code: rooms, imports, families; writes tree and picture of docs/house.md.

`python tests/support/house.py` brings both up to date.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "hybridr"
PAGE = ROOT / "docs" / "house.md"
PICTURE = ROOT / "docs" / "house.svg"
TREE = "<!-- tree -->"
BOX, GAP = (150, 44), (22, 40)


class Import(NamedTuple):
    """One import, wherever it stands: at the top, inside a function or for types only."""

    room: str
    target: str
    line: int


@cache
def rooms() -> dict[str, Path]:
    """Map dotted names to the files of the library."""
    found = {}
    for path in sorted(LIBRARY.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    """Parse a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports() -> tuple[Import, ...]:
    """List ALL imports of the library's files among each other, lazy ones too."""
    return tuple(one for room in rooms() for one in imports_of(room))


def imports_of(room: str) -> Iterator[Import]:
    """Yield what a file imports of the library."""
    path = rooms()[room]
    package = room if path.name == "__init__.py" else room.rpartition(".")[0]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            source = absolute(node, package)
            for alias in node.names:
                named = f"{source}.{alias.name}"
                target = named if named in rooms() else source
                if target in rooms() and target != room:
                    yield Import(room, target, node.lineno)


def absolute(node: ast.ImportFrom, package: str) -> str:
    """Give the dotted name that a `from` import names."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def package_of(room: str) -> str:
    """Name the package or the loose file that a room belongs to; the face of the library is `__init__`."""
    parts = room.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def order() -> list[set[str]]:
    """Read the floors from docs/house.md, the ground first."""
    block = re.search(r"## The order of imports.*?```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert block, "docs/house.md has no order of imports"
    return [
        set(line.split("#")[0].split()) for line in block.group(1).splitlines() if line.split("#")[0].strip()
    ]


def circles() -> list[list[str]]:
    """List the circles of files that import each other (Tarjan 1972)."""
    above: dict[str, set[str]] = {room: set() for room in rooms()}
    for one in imports():
        above[one.room].add(one.target)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(room: str) -> None:
        index[room] = low[room] = len(index)
        stack.append(room)
        for target in above[room]:
            if target not in index:
                visit(target)
            if target in stack:
                low[room] = min(low[room], low[target])
        if low[room] == index[room]:
            cut = stack.index(room)
            part = stack[cut:]
            del stack[cut:]
            if len(part) > 1:
                found.append(sorted(part))

    for room in rooms():
        if room not in index:
            visit(room)
    return found


def longest_chain() -> int:
    """Count the files of the longest way down; there are no circles."""
    below: dict[str, set[str]] = {room: set() for room in rooms()}
    for one in imports():
        below[one.room].add(one.target)

    @cache
    def depth(room: str) -> int:
        return 1 + max(map(depth, below[room]), default=0)

    return max(map(depth, rooms()))


def families() -> dict[str, list[str]]:
    """Map the folders whose `__init__` holds a Protocol to the names of their files."""
    found = {}
    for room, path in rooms().items():
        if path.name == "__init__.py" and protocols_of(path):
            names = [other.name for other in path.parent.glob("*.py") if other.name != "__init__.py"]
            found[room.removeprefix("hybridr.")] = sorted(name.removesuffix(".py") for name in names)
    return found


def protocols_of(path: Path) -> list[ast.ClassDef]:
    """Return the Protocols that stand at the top of a file."""
    return [
        node
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
    ]


def first_line(path: Path) -> str:
    """Give the first line of a file's docstring."""
    docstring = ast.get_docstring(tree_of(path))
    assert docstring, f"{path} has no docstring, whose first line stands in the tree"
    return docstring.splitlines()[0]


def written_tree() -> str:
    """Write the tree: a line a folder and loose file, what it says of itself."""
    loose = sorted(path for path in LIBRARY.glob("*.py") if path.name != "__init__.py")
    folders = sorted({path.parent for path in rooms().values()} - {LIBRARY})
    lines = ["hybridr/", *(entry(path.name, 1, path) for path in loose)]
    for folder in folders:
        lines.append(entry(f"{folder.name}/", len(folder.relative_to(LIBRARY).parts), folder / "__init__.py"))
    return "\n".join(lines)


def entry(name: str, depth: int, path: Path) -> str:
    """Write a room's line: its name, and the first line of its docstring."""
    return f"{'  ' * depth}{name:<{28 - 2 * depth}}{first_line(path)}"


def drawn() -> str:
    """Draw the packages by floors, the ground at the bottom.

    An arrow runs from a package to one that it imports, unless a longer way leads there too.
    """
    floors = order()
    wide = max(map(len, floors))
    step_x, step_y = BOX[0] + GAP[0], BOX[1] + GAP[1]
    width, height = 2 * GAP[0] + wide * step_x, GAP[1] + len(floors) * step_y
    at = {
        package: (GAP[0] + (wide - len(floor)) * step_x / 2 + place * step_x, height - (number + 1) * step_y)
        for number, floor in enumerate(floors)
        for place, package in enumerate(sorted(floor))
    }
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    paper = '<rect width="100%" height="100%" fill="white"/>'
    arrows = [arrow(at[above], at[below]) for above, below in shortest(between_packages())]
    boxes = [box(package, *at[package]) for package in sorted(at)]
    return "\n".join([head, paper, *arrows, *boxes, "</svg>\n"])


def between_packages() -> dict[str, set[str]]:
    """Map each package to those that it imports."""
    found: dict[str, set[str]] = {package: set() for floor in order() for package in floor}
    for one in imports():
        if package_of(one.room) != package_of(one.target):
            found[package_of(one.room)].add(package_of(one.target))
    return found


def shortest(imported: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Leave out the arrows that a longer way makes needless (transitive reduction)."""

    @cache
    def reached(package: str) -> frozenset[str]:
        return frozenset(imported[package]).union(*(reached(below) for below in imported[package]))

    return [
        (package, below)
        for package in sorted(imported)
        for below in sorted(imported[package])
        if not any(below in reached(other) for other in imported[package] - {below})
    ]


def arrow(above: tuple[float, float], below: tuple[float, float]) -> str:
    """Draw a thin curve from a package down to one that it imports."""
    x1, y1 = above[0] + BOX[0] / 2, above[1] + BOX[1]
    x2, y2 = below[0] + BOX[0] / 2, below[1]
    middle = (y1 + y2) / 2
    path = f"M{x1:g} {y1:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}"
    return f'<path d="{path}" fill="none" stroke="#8aa" stroke-width="1"/>'


def box(package: str, x: float, y: float) -> str:
    """Draw a package with its name and its families."""
    inside = ", ".join(sorted(name.split(".")[1] for name in families() if name.split(".")[0] == package))
    middle, high = x + BOX[0] / 2, y + (19 if inside else 27)
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{BOX[0]}" height="{BOX[1]}" rx="6" fill="#f4f7f7" stroke="#355"/>'
        f'<text x="{middle:g}" y="{high:g}" text-anchor="middle" font-size="14">{package}</text>'
        f'<text x="{middle:g}" y="{y + 35:g}" text-anchor="middle" font-size="10" fill="#577">{inside}</text>'
    )


def page_with(tree: str) -> str:
    """Put a tree into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(TREE)
    _, _, after = rest.partition(TREE)
    return f"{before}{TREE}\n\n```text\n{tree}\n```\n\n{TREE}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with(written_tree()), encoding="utf-8")
    PICTURE.write_text(drawn(), encoding="utf-8")
