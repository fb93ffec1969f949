"""No name becomes a path but by `child_path`, and few files delete: held by the syntax of all of hybridr."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from support import house

CONSTRUCTOR = "local.py"
DELETING = {
    "bundle.py": "parts by their pattern, manifests, locks",
    "dam.py": "the state of a training that ended, in the folder that the user named",
    "local.py": "delete_child itself, its own temporary files",
    "programs.py": "programs by fingerprint, what a killed start left",
    "remembered.py": "what the register of this machine lists, by the user's word",
    "process.py": "the state of a node",
    "sessions.py": "optimised copies of graphs in its own folder of the cache",
    "staging.py": "what it wrote itself, and what killed runs left of that",
    "configuration.py": "a configuration that is written anew",
    "transfer.py": "what a killed export left",
    "token_cache.py": "its own files",
    "writing.py": "the file of refused documents",
}
DELETES = {"rmtree", "unlink", "rmdir", "remove", "removedirs"}
OWN_REMOVE = {"path", "Path", "os", "shutil"}


def source_files() -> Iterator[tuple[str, ast.Module]]:
    for folder in ("hybridr", "cli"):
        for path in sorted((house.ROOT / folder).rglob("*.py")):
            yield path.name, house.tree_of(path)


def joins_of(tree: ast.Module) -> list[str]:
    """List where a name is put to a path by something else than `child_path`."""
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = {ast.unparse(one) for one in ast.walk(tree) if is_loose(one, set())}
    for scope in scopes:
        ours = names_of_folders(scope)
        found |= {ast.unparse(one) for one in ast.walk(scope) if is_loose(one, ours)}
    return sorted(found)


def names_of_folders(scope: ast.FunctionDef) -> set[str]:
    """Name what a function calls the folders of hybridr, and what lies in them."""
    ours: set[str] = set()
    while True:
        more = {
            name.id
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and speaks_of_folder(node.value, ours)
            for target in node.targets
            for name in ast.walk(target)
            if isinstance(name, ast.Name)
        }
        if more <= ours:
            return ours
        ours |= more


def speaks_of_folder(node: ast.AST, ours: set[str]) -> bool:
    """Whether an expression asks for a folder (`data_folder()`), or names one that was asked for."""
    return any(
        (isinstance(one, ast.Call) and name_of(one.func).endswith("_folder"))
        or (isinstance(one, ast.Name) and one.id in ours)
        for one in ast.walk(node)
    )


def is_loose(node: ast.AST, ours: set[str]) -> bool:
    """Whether this joins a path with what is no constant."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        chosen = not is_constant(node.right)
        return isinstance(node.right, ast.JoinedStr) or (chosen and speaks_of_folder(node.left, ours))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        text = any(isinstance(side, ast.Constant | ast.JoinedStr) for side in (node.left, node.right))
        return text and speaks_of_folder(node.left, ours)
    if not isinstance(node, ast.Call):
        return False
    called, loose = name_of(node.func), [one for one in node.args if not is_constant(one)]
    if called == "join":
        return ast.unparse(node.func) == "os.path.join"
    if called in ("joinpath", "Path"):
        return (
            len(loose) > 1
            or (called == "joinpath" and bool(loose))
            or any(isinstance(one, ast.JoinedStr) and speaks_of_folder(one, ours) for one in loose)
        )
    return False


def is_constant(node: ast.expr) -> bool:
    """Whether this is a text of the program: "judges", JUDGES, runs.STATE_FILE, GRAPHS["fp32"]."""
    if isinstance(node, ast.Subscript):
        return is_constant(node.value) and isinstance(node.slice, ast.Constant)
    return isinstance(node, ast.Constant) or name_of(node).isupper()


def name_of(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def deletions_of(tree: ast.Module) -> list[str]:
    """List the calls that delete something on disk."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (called := name_of(node.func)) in DELETES
        and (called in ("rmtree", "unlink", "rmdir") or ast.unparse(node.func).split(".")[0] in OWN_REMOVE)
    ]


@pytest.mark.attack(81, 82, 84)
def test_no_name_becomes_a_path_but_by_the_constructor() -> None:
    allowed = {CONSTRUCTOR, "programs.py"}  # the last looks at names that os.walk gives
    loose = {name: found for name, tree in source_files() if (found := joins_of(tree))}
    assert {name: found for name, found in loose.items() if name not in allowed} == {}


@pytest.mark.attack(81)
def test_few_files_delete() -> None:
    deleting = {name for name, tree in source_files() if deletions_of(tree)}
    assert deleting == DELETING.keys(), "each file that deletes says what: see DELETING"


OLD = [
    'def f(name): return data_folder() / "judgements" / f"{name}-{uuid}"',
    'def f(fingerprint): return data_folder() / "term-tables" / fingerprint[:16]',
    "def f(index): return state_folder() / REJECTS / (index + '.jsonl')",
    "def f(self, judge): return self.folder / 'judges' / f'{judge}.tsv'",
    "def f(name):\n    folder = cache_folder() / 'x'\n    again = folder\n    return again / name",
    "def f(name): return state_folder().joinpath('x', name)",
    "def f(name): return Path(data_folder(), name)",
    "def f(name): return Path(f'{data_folder()}/{name}')",
    "def f(name): return str(data_folder()) + '/' + name",
    "def f(name): return os.path.join(str(folder), name)",
    "def f(ready, part): return vectors_folder(ready.folder) / part",
    "def f(known): return data_folder() / known.record.source",
]
CHECKED = [
    'def f(name): return child_path(data_folder() / "judgements", f"{name}-{uuid}")',
    "def f(): return cache_folder() / 'models' / runs.STATE_FILE / GRAPHS['fp32']",
    "def f(): return total_bytes / count / 1e6",
    "def f(name):\n    folder = data_folder() / 'x'\n    return child_path(folder, name)",
    "def f(path): return Path(path)",
]


@pytest.mark.parametrize("form", OLD)
def test_every_old_form_is_seen(form: str) -> None:
    assert joins_of(ast.parse(form))


@pytest.mark.parametrize("form", CHECKED)
def test_no_checked_form_is_blamed(form: str) -> None:
    assert not joins_of(ast.parse(form))


@pytest.mark.parametrize(
    "form", ["shutil.rmtree(x)", "path.unlink(missing_ok=True)", "os.remove(x)", "a.b.rmdir()", "rmtree(x)"]
)
def test_every_deletion_is_seen(form: str) -> None:
    assert deletions_of(ast.parse(form))
    assert not deletions_of(ast.parse("remove(cluster, name); found.remove(x)"))


@pytest.mark.attack(106)
def test_no_name_becomes_part_of_an_address_but_by_what_quotes_it() -> None:
    """`#`, `?` and `..` in a name would ask the cluster something else."""
    loose = {
        (file, ast.unparse(node.args[1]))
        for file, tree in source_files()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "request"
        and len(node.args) > 1
        and not is_quoted(node.args[1])
    }
    kinds_of_ml = ("remote_models.py", "f'{ML}/{kind}/_search'")
    own_node = ("process.py", "f'{state.url}{HEALTH}'")
    assert loose == {kinds_of_ml, own_node}


def is_quoted(node: ast.AST) -> bool:
    """Tell whether what an address is made of is text, constants, and names that `path_of` quotes."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("path_of", "ml_path"):
        return True
    if isinstance(node, ast.FormattedValue) and not isinstance(node.value, ast.Call):
        return isinstance(node.value, ast.Name) and node.value.id.isupper()
    return all(map(is_quoted, ast.iter_child_nodes(node)))
