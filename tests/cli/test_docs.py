"""The pages under docs/ say what there is: every command, setting, key and refusal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradient.config import _keys
from gradient.errors import BY_CODE
from tests.support.cli_commands import commands
from tests.support.graph_world import World

DOCS = Path(__file__).parents[2] / "docs"
README = DOCS.parent / "README.md"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_command_stands_in_the_page_of_commands() -> None:
    rows = [line for line in page("cli.md").splitlines() if line.startswith("| `gradient")]
    shown = set()
    for row in rows:
        first, *others = re.findall(r"`([^`]+)`", row.split("|")[1])
        shown.add(first)
        shown |= {" ".join([*first.split()[:-1], other]) for other in others}
    wanted = {"gradient " + " ".join(words) for words, _ in commands()}
    assert wanted == {words for words in shown if not words.startswith("gradient-worker")}


def test_every_setting_stands_in_the_page_of_settings_with_its_default(world: World) -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\S*) \| ([^|]+) \|", page("settings.md"), re.MULTILINE)
    shown = {name: ("" if value == "empty" else value, unit) for name, value, unit in rows}
    settings = world.rows("select name, default_value from gradient.setting")
    assert {row["name"]: row["default_value"] for row in settings} == {
        name: value for name, (value, _) in shown.items()
    }


def test_every_key_stands_in_the_page_of_configuration_with_its_variable() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| `(GRADIENT_[A-Z_]+)` ", page("configuration.md"), re.M)
    assert dict(rows) == {key: "GRADIENT_" + key.upper().replace(".", "_") for key in _keys()}


def test_every_refusal_stands_in_the_page_of_operations() -> None:
    assert set(re.findall(r"^\| (GR\d+) ", page("operations.md"), re.MULTILINE)) == set(BY_CODE)


def test_the_statements_of_the_page_of_operations_run(world: World) -> None:
    blocks = re.findall(r"```sql\n(.*?)```", page("operations.md"), re.DOTALL)
    text = re.sub(r"--.*$", "", "\n".join(blocks), flags=re.MULTILINE)
    statements = [part.strip() for part in text.split(";") if part.strip()]
    assert len(statements) > 10
    for statement in statements:
        # Names and argument types are resolved; nothing is run.
        world.conn.execute(f"prepare checked as {statement}")
        world.conn.execute("deallocate checked")


@pytest.mark.parametrize("path", [README, *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name)
def test_links_between_the_pages_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8"))
    for link in links:
        if not link.startswith("http"):
            assert (path.parent / link).exists(), link


def test_the_commands_of_the_readme_exist() -> None:
    text = README.read_text(encoding="utf-8")
    typed = re.findall(r"^\$ gradient ([a-z-]+(?: [a-z-]+)?)", text, re.MULTILINE)
    known = {" ".join(words) for words, _ in commands()}
    assert typed
    for words in typed:
        assert words in known or words.split()[0] in known, words


def test_every_function_that_the_page_of_the_graph_names_exists(world: World) -> None:
    text = page("graph.md")
    steps = re.search(r"^`drv_present`.*$", text, re.MULTILINE)
    assert steps is not None
    named = set(re.findall(r"`((?:graph|gradient)\.[a-z_]+)(?:\([^`]*)?`", text))
    named |= {f"graph.check_{step}" for step in re.findall(r"`(\w+)`", steps.group())}
    named.discard("graph.check_")
    known = world.rows(
        "select pronamespace::regnamespace || '.' || proname as name from pg_proc"
        " union all select relnamespace::regnamespace || '.' || relname from pg_class"
    )
    assert named - {row["name"] for row in known} == set()
    assert len(named) > 60
