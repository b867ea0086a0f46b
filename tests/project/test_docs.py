"""The documentation names files, commands and fields that exist."""

import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs" / "scripts"))
import results  # noqa: E402

PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob(".github/*.md")])
SITE = (ROOT / "mkdocs.yml").read_text()
LEFT_OUT = SITE.partition("exclude_docs: |\n")[2].partition("\n\n")[0].split()
"""Pages of results whose figures are not measured yet, and other files that the site leaves out."""
RESULTS = sorted((ROOT / "docs" / "results" / "data").glob("*.json"))
RESULT_PAGES = sorted((ROOT / "docs" / "results").glob("*.md"))
FOLDERS = ("", "serving/macroserve", "operator/macroserve/operator", "lab/macroserve_lab")
"""What a page may leave out of a path."""
IN_CODE = re.compile(r"`([^`\n]+)`")
FENCED = re.compile(r"^```sh$(.*?)^```$", re.DOTALL | re.MULTILINE)
PATH = re.compile(r"(?:[\w-]+/)+(?:[\w-]+\.(?:py|md|yaml|json|lock|txt|sh))?|[\w-]+\.py")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
TARGET = re.compile(r"make ([a-z][a-z0-9-]*)")
FIELD = re.compile(r"(?<![\w./])(spec|status)((?:\.[a-zA-Z]+)+)")
MADE = ("build/", "results/", "dist/")
"""Folders that commands write."""


def is_measured(page: Path) -> bool:
    return str(page.relative_to(ROOT / "docs")) not in LEFT_OUT


def identify(page: Path) -> str:
    return str(page.relative_to(ROOT))


def exists(path: str) -> bool:
    return any((ROOT / folder / path).exists() for folder in FOLDERS)


@pytest.mark.parametrize("page", PAGES, ids=identify)
def test_page_names_files_that_exist(page: Path) -> None:
    named = {name for name in IN_CODE.findall(page.read_text()) if PATH.fullmatch(name)}
    assert [name for name in sorted(named) if not (name.startswith(MADE) or exists(name))] == []


@pytest.mark.parametrize("page", PAGES, ids=identify)
def test_page_links_to_files_that_exist(page: Path) -> None:
    links = {link for link in LINK.findall(page.read_text()) if "://" not in link}
    drawn_later = {"peers.svg"} if page in RESULT_PAGES and not is_measured(page) else set()
    missing = [link for link in sorted(links - drawn_later) if not (page.parent / link).exists()]
    assert [link for link in missing if "reference/" not in link] == []


@pytest.mark.parametrize("page", PAGES, ids=identify)
def test_page_names_make_targets_that_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = page.read_text()
    commands = [c for c in IN_CODE.findall(text) if c.startswith("make ")]
    commands += re.findall(r"^make .*$", "".join(FENCED.findall(text)), re.MULTILINE)
    named = {TARGET.match(command) for command in commands}
    assert {match[1] for match in named if match} <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=identify)
def test_page_names_fields_of_the_custom_resource(page: Path) -> None:
    definition = yaml.safe_load((ROOT / "crds" / "macroinstances.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    code = " ".join(name for name in IN_CODE.findall(page.read_text()) if "/" not in name)
    for part, path in FIELD.findall(code):
        node = schema[part]
        for name in path.split(".")[1:]:
            if "properties" not in node:
                break  # free-form below, such as engine.args
            assert name in node["properties"] or node.get("x-kubernetes-preserve-unknown-fields"), (
                f"{part}{path}"
            )
            node = node["properties"].get(name, {})


def test_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_reference_is_generated_from_the_sources(tmp_path: Path) -> None:
    script = ROOT / "docs" / "scripts" / "reference.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, cwd=ROOT)
    pages = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert "## spec.slo\n" in pages["macroinstance.md"]
    assert "`macroserve_requests_total`" in pages["metrics.md"]
    assert "`macroserve_operator_leader`" in pages["metrics.md"]
    assert "## macroserve bench serve\n" in pages["cli.md"]
    assert "`networkPolicy.served.enabled`" in pages["values.md"]


@pytest.mark.parametrize("page", filter(is_measured, RESULT_PAGES), ids=identify)
def test_page_of_results_has_a_figure_for_each_place(page: Path) -> None:
    filled = results.fill(page.read_text())
    assert "{{" not in filled


@pytest.mark.parametrize("data", RESULTS, ids=identify)
def test_figures_of_results_tell_date_machine_and_commit(data: Path) -> None:
    told = json.loads(data.read_text())
    assert datetime.date.fromisoformat(told["date"])
    assert told["machine"]
    assert re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", told["commit"])


@pytest.mark.parametrize("page", RESULT_PAGES, ids=identify)
def test_page_of_results_is_left_out_only_without_figures(page: Path) -> None:
    has_figures = all((results.DATA / f"{name}.json").exists() for name in named(page))
    assert is_measured(page) == has_figures


def named(page: Path) -> set[str]:
    """Return the names of the files whose figures a page shows."""
    return {place[1] for place in results.PLACE.finditer(page.read_text())}


def test_navigation_of_the_site_has_every_page() -> None:
    site = SITE.partition("\nnav:\n")[2]
    every = filter(is_measured, (ROOT / "docs").rglob("*.md"))
    pages = [str(page.relative_to(ROOT / "docs")) for page in every]
    assert [page for page in pages if not re.search(rf"\b{re.escape(page)}$", site, re.M)] == []
