"""The shape of the project, held against docs/house.md: one-way imports, families, sizes, names."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridr
from hybridr.errors import HybridrError
from hybridr.families import class_constants, load_member, member_files, member_names
from support import house

ROOT = house.ROOT
MODULES = list(house.rooms().values())
FAMILIES = {family.partition(".")[2] for family in house.families()}
LOOSE, LINES, FUNCTION, PARAMETERS = 9, 500, 60, 7
CHAIN, METHODS, FIELDS, TOP = 22, 20, 25, 18
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(folder: str) -> Iterator[tuple[str, Function]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(house.tree_of(path)):
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def length_of(node: Function) -> int:
    """Count the lines, less those of an example: a verb's docstring ends with one that runs."""
    assert node.end_lineno is not None
    _, example, shown = (ast.get_docstring(node) or "").partition(">>>")
    return node.end_lineno - node.lineno + 1 - (example + shown).count("\n") - 2 * bool(example)


def test_imports_go_one_way() -> None:
    floor_of = {name: number for number, floor in enumerate(house.order()) for name in floor}
    packages = {house.package_of(room) for room in house.rooms()}
    assert packages == floor_of.keys(), "a package without a floor, or a floor without a package"
    assert len(packages - {"__init__"}) <= TOP
    wrong = [
        f"{one.room}:{one.line} imports {one.target}"
        for one in house.imports()
        if (above := house.package_of(one.room)) != (below := house.package_of(one.target))
        and floor_of[below] >= floor_of[above]
    ]
    assert not wrong


def test_no_file_is_part_of_a_circle() -> None:
    assert not house.circles()


def test_the_longest_chain_of_imports() -> None:
    assert house.longest_chain() <= CHAIN


def test_the_face_of_a_package_holds_a_docstring_only() -> None:
    for room, path in house.rooms().items():
        if path.name == "__init__.py" and room != "hybridr" and not house.protocols_of(path):
            assert len(house.tree_of(path).body) == 1, room


def test_the_page_has_the_tree_as_it_is() -> None:
    assert house.page_with(house.written_tree()) == house.PAGE.read_text(encoding="utf-8"), (
        "docs/house.md is stale: python tests/support/house.py"
    )


def test_the_picture_is_as_the_imports_are() -> None:
    assert house.drawn() == house.PICTURE.read_text(encoding="utf-8"), (
        "docs/house.svg is stale: python tests/support/house.py"
    )


@pytest.mark.parametrize("family", sorted(house.families()))
def test_a_family_has_a_protocol_a_test_and_a_row_on_the_page(family: str) -> None:
    face = house.LIBRARY / family.replace(".", "/") / "__init__.py"
    assert all(ast.get_docstring(protocol) for protocol in house.protocols_of(face))
    package, folder = family.split(".")
    page = house.PAGE.read_text(encoding="utf-8")
    assert f"`{package}/{folder}/`" in page
    assert f"`tests/{package}/test_{folder}.py`" in page
    assert (ROOT / "tests" / package / f"test_{folder}.py").is_file()
    assert set(member_names(family)) <= set(house.families()[family])


def test_every_member_of_a_family_can_be_loaded() -> None:
    for family, files in house.families().items():
        for name in files:
            if family != "training.objectives" or "name" in class_constants(member_files(family)[name]):
                assert load_member(family, name).name == name


def test_the_page_names_nothing_that_is_not_there() -> None:
    page, _, _ = house.PAGE.read_text(encoding="utf-8").partition(house.TREE)
    for name in re.findall(r"`((?:hybridr|cli|benchmarks|tests)/[\w./]+)`", page):
        assert (ROOT / name).exists(), name


def test_rooms_and_functions_are_small() -> None:
    loose = [path.name for path in MODULES if path.parent == house.LIBRARY]
    assert len(loose) <= LOOSE, loose
    long = [str(path) for path in MODULES if len(path.read_text("utf-8").splitlines()) > LINES]
    assert long == [str(house.LIBRARY / "index.py")], "a method for every verb"
    found = [(name, node) for folder in ("hybridr", "cli") for name, node in functions(folder)]
    assert not [name for name, node in found if length_of(node) > FUNCTION]
    assert [node.name for _, node in found if parameters_of(node) > PARAMETERS] == ["assemble"], (
        "a fixed name"
    )


def test_classes_are_small() -> None:
    """Fields count what is given to make one; two are what others read, and stay as they are."""
    found = [
        node
        for folder in ("hybridr", "cli")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(house.tree_of(path))
        if isinstance(node, ast.ClassDef)
    ]
    full = [one.name for one in found if sum(isinstance(part, Function) for part in one.body) > METHODS]
    assert full == ["Index"], "a method for every verb"
    assert {one.name for one in found if len(fields_of(one)) > FIELDS} == {"Record", "RemSettings"}


def fields_of(node: ast.ClassDef) -> list[str]:
    return [
        ast.unparse(part.target)
        for part in node.body
        if isinstance(part, ast.AnnAssign) and not ast.unparse(part.annotation).startswith("ClassVar")
    ]


def parameters_of(node: Function) -> int:
    """Count what a caller gives: `self` and the session of a verb are not given."""
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls", "session")])


def test_a_file_name_exists_once() -> None:
    files = Counter(path.name for path in MODULES if path.parent.name not in FAMILIES)
    assert {name for name, count in files.items() if count > 1} <= {"__init__.py", "settings.py"}


def test_a_types_name_means_one_thing() -> None:
    """Classes and aliases, of the library and of the command line."""
    files = [path for folder in ("hybridr", "cli") for path in (ROOT / folder).rglob("*.py")]
    nodes = [node for path in files for node in house.tree_of(path).body]
    names = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    names += [name for name in constants() if name[0].isupper() and not name.isupper()]
    assert not [name for name, count in Counter(names).items() if count > 1]


def constants() -> Iterator[str]:
    """Give the names that are assigned at the top of files."""
    for node in (node for path in MODULES for node in house.tree_of(path).body):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) and node.value else targets
        yield from (part.id for one in targets for part in ast.walk(one) if isinstance(part, ast.Name))


def test_torch_stays_where_it_belongs() -> None:
    for path in MODULES:
        if re.search(
            r"^\s*(from|import) (torch|transformers|peft|accelerate)\b", path.read_text("utf-8"), re.M
        ):
            assert path.relative_to(house.LIBRARY).parts[0] == "training", path


def test_one_module_imports_the_client() -> None:
    users = [
        p.name for p in MODULES if re.search(r"^\s*(from|import) opensearchpy", p.read_text("utf-8"), re.M)
    ]
    assert users == ["client.py"]


APPLICATION = re.compile(r"hybridr|hybridr\.(index|errors|records|families|languages|(\w+\.)*settings)")
"""What every verb may import: `Index` and the public names; exceptions, records, settings and their words."""
WITHOUT_INDEX = {
    "cluster.embedded": "a node has no index",
    "cluster.failures": "a failed round is rendered with its kind",
    "cluster.vector_forms": "the source of an estimate is rendered beside it",
    "demo.demo": "the demo starts a node and names its index itself",
    "doctor.diagnosis": "the doctor asks before anything can be connected",
    "encoders.export": "an encoder folder is exported without a cluster",
    "encoders.precisions": "encoders are timed without a cluster",
    "encoders.registry": "a list without a cluster",
    "files.formats": "documents and queries are read from files",
    "files.local": "an encoder folder is rendered by its manifest",
    "files.remembered": "files of this machine are cleaned without a cluster",
    "indexing.stages.vectors": "Parquet is encoded without a cluster",
    "indexing.reindexing": "a length of time such as 30s is parsed",
    "relevance.corpus": "what is trained on may be a file",
    "search.checks": "an encoder is found by its name without a cluster",
    "search.rules": "a rule is parsed, from options or a file",
    "search.systems": "run files are measured without an index",
    "serving": "servers and metrics serve several indexes, or none",
    "training": "trainings need no index",
}


def test_the_command_line_imports_the_application_layer() -> None:
    """A verb parses, calls a method of `Index` and renders; types that it renders may come from anywhere."""
    used = set()
    for path in (ROOT / "cli").rglob("*.py"):
        for name in run_time_imports(path):
            if not APPLICATION.fullmatch(name):
                reasons = [key for key in WITHOUT_INDEX if f"{name}.".startswith(f"hybridr.{key}.")]
                assert reasons, f"{path.relative_to(ROOT)} imports {name}: a method of Index should do it"
                used.update(reasons)
    assert used == WITHOUT_INDEX.keys(), "an exception that nobody needs"


def run_time_imports(path: Path) -> Iterator[str]:
    """Yield the modules of the library that a file imports when it runs."""
    tree = house.tree_of(path)
    types = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in types and not node.level:
            if (node.module or "").split(".")[0] == "hybridr":
                yield node.module or ""


def test_nobody_knows_a_representation_by_its_name() -> None:
    """Else a further one would be more than a file: settings and record name some, legs and signals ask."""
    told_of = {*member_names("indexing.representations"), "token_bits", "BITS_FIELD"}
    users = {
        str(path.relative_to(house.LIBRARY))
        for path in MODULES
        if not {"representations", "retrievers", "signals"} & set(path.parts)
        and told_of & set(words_of(path))
    }
    assert users == {"cluster/token_field.py", "cluster/record.py", "indexing/settings.py"}


def words_of(path: Path) -> Iterator[str]:
    """Give every name that a file uses, and every text that it holds."""
    for node in ast.walk(house.tree_of(path)):
        for part in ("id", "attr", "name", "arg", "value"):
            if isinstance(found := getattr(node, part, None), str):
                yield found


def test_the_record_is_read_in_one_place() -> None:
    readers = [p.name for p in MODULES if re.search(r"""(get\(|\[)["']_meta["']""", p.read_text("utf-8"))]
    assert readers == ["record.py"]


def test_tests_mirror_the_house() -> None:
    tests = ROOT / "tests"
    folders = [tests, tests / "server"]
    wings = {path.parent.name for path in MODULES if path.parent.parent == house.LIBRARY}
    strays = []
    for folder in folders:
        for wing in sorted(wings):
            subjects = {path.stem for path in (house.LIBRARY / wing).rglob("*.py")} | {
                path.name for path in (house.LIBRARY / wing).iterdir() if path.is_dir()
            }
            for path in (folder / wing).glob("test_*.py"):
                name = path.stem.removeprefix("test_")
                if not any(name == one or name.startswith(f"{one}_") for one in subjects):
                    strays.append(str(path.relative_to(ROOT)))
    assert not strays


def test_what_runs_only_on_request_is_not_collected() -> None:
    """CI fails where a test was skipped: what has a command of its own lies in a folder of its own."""
    skipped = [
        path.relative_to(ROOT)
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"skipif\([^)]*environ", path.read_text(encoding="utf-8"))
    ]
    assert skipped == []


def test_no_formatting_is_skipped() -> None:
    skip = "# fmt: " + "skip"
    for folder in ("hybridr", "cli", "benchmarks", "tests"):
        assert not [
            path for path in (ROOT / folder).rglob("*.py") if skip in path.read_text(encoding="utf-8")
        ]


def test_public_names_are_complete_and_light() -> None:
    names = {name for name in hybridr.__all__}
    assert sorted(names) == dir(hybridr)
    for name in names:
        assert getattr(hybridr, name).__doc__


def test_import_is_fast_and_leaves_torch_alone() -> None:
    heavy = "{'torch', 'transformers', 'peft', 'onnxruntime', 'openvino'}"
    code = f"import sys, hybridr, hybridr_cli; raise SystemExit({heavy} & sys.modules.keys() != set())"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert processor_seconds("-c", "import hybridr") - processor_seconds("-c", "pass") < 0.3


def test_help_is_fast() -> None:
    assert processor_seconds("-m", "hybridr_cli", "--help") < 0.6


def processor_seconds(*arguments: str) -> float:
    """Give what Python takes of the processor, by no clock: other work of the machine counts little."""

    def taken() -> float:
        before = os.times()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        after = os.times()
        return after.children_user - before.children_user + after.children_system - before.children_system

    return min(taken() for _ in range(3))


def test_library_never_prints_or_exits() -> None:
    for path in MODULES:
        for node in ast.walk(house.tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("print", "exit", "quit"), path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("sys", "exit"), path


def test_nothing_is_done_inside_an_assertion() -> None:
    """`python -O` leaves assertions out: what they call or assign would be missing."""
    for path in [*MODULES, *(ROOT / "cli" / "hybridr_cli").rglob("*.py")]:
        assertions = [node for node in ast.walk(house.tree_of(path)) if isinstance(node, ast.Assert)]
        for part in (part for node in assertions for part in ast.walk(node.test)):
            assert not isinstance(part, ast.NamedExpr), f"{path.name}:{part.lineno}"
            if isinstance(part, ast.Call):
                assert ast.unparse(part.func) in ("isinstance", "reads_tokens"), f"{path.name}:{part.lineno}"


COMMAND = re.compile(
    r"(\bhybridr [a-z][a-z-]*(?: (?! )[^ ;]+)*|\brm(?: -r)?|--(?:alias|fields|index)(?:-[a-z]+)?)[ =]$"
)
"""The beginning of a command, or of an option that takes a name, up to an argument."""
PLAIN_ARGUMENTS = "deployment.way kind.option() minimum modules request".split()
"""What needs no quotes, or has them; and numbers, beside constants."""


def test_commands_shown_to_users_quote_their_arguments() -> None:
    """Names of indices may contain `;`, `&`, `$` and backquotes, and folders anything."""
    for path in [*MODULES, *(ROOT / "cli" / "hybridr_cli").rglob("*.py")]:
        for node in ast.walk(house.tree_of(path)):
            text = ""
            for part in node.values if isinstance(node, ast.JoinedStr) else ():
                if isinstance(part, ast.FormattedValue) and COMMAND.search(text):
                    argument = ast.unparse(part.value)
                    quoted = argument.startswith(("quote(", "shlex.quote(")) or argument in PLAIN_ARGUMENTS
                    assert quoted or argument.isupper(), f"{path}:{node.lineno}: {argument}"
                text += str(part.value) if isinstance(part, ast.Constant) else "X"


def test_every_error_is_in_the_tree() -> None:
    def below(kind: type[HybridrError]) -> list[str]:
        return [kind.__name__, *(name for child in kind.__subclasses__() for name in below(child))]

    drawn = re.findall(r"^[│├└─ ]*(\w+)  ", sys.modules["hybridr.errors"].__doc__ or "", re.M)
    assert sorted(set(below(HybridrError))) == sorted(drawn)


BANNED = set(
    "told kept made asked found wanted given known shown judged said heard looked drawn one other some both "
    "again there of beside around within least most".split()
)
PARTICIPLES = BANNED - set("of within around least".split())


def test_variables_are_nouns() -> None:
    """A bare participle or pronoun says nothing of what a variable holds."""
    bound = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for folder in ("hybridr", "cli")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in bound_names(path)
    ]
    assert bound == []


def bound_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the banned names that a file gives to variables, parameters and functions; fields are keys."""
    tree = house.tree_of(path)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {id(part) for node in classes for line in node.body for part in targets_of(line)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, Function) and node.name in PARTICIPLES:
            name = node.name
        else:
            continue
        if name in BANNED:
            yield node.lineno, name


def targets_of(line: ast.stmt) -> list[ast.expr]:
    """Return what a line of a class assigns to."""
    if isinstance(line, ast.AnnAssign):
        return [line.target]
    return line.targets if isinstance(line, ast.Assign) else []


def test_a_docstring_begins_with_a_noun_or_a_verb() -> None:
    """A reader who begins with "What" or "Of" has to find its subject first."""
    begins = re.compile(r"(What|Of|Who|Whose|That|So|By|Its) ")
    texts = (
        (path, node)
        for path in MODULES
        for node in ast.walk(house.tree_of(path))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )
    assert not [f"{path}:{node.lineno}" for path, node in texts if begins.match(str(node.value.value))]
