"""The documentation names files, commands and fields that exist."""

import datetime
import json
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import yaml
from support import quickstart

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.append(str(DOCS / "scripts"))
import peers  # noqa: E402
import results  # noqa: E402
import tables  # noqa: E402

SITE_PAGES = sorted(set(DOCS.rglob("*.md")) - set((DOCS / "templates").rglob("*.md")))
PAGES = [*SITE_PAGES, *sorted([*ROOT.glob("*.md"), *ROOT.glob(".github/*.md")])]
READMES = sorted(ROOT.glob("*/README.md"))
REPOSITORY = "https://github.com/macroserve/macroserve/blob/main"
RESULTS = sorted((DOCS / "results" / "data").glob("*.json"))
FOLDERS = ("", "serving/macroserve", "operator/macroserve/operator", "lab/macroserve_lab")
"""What a page may leave out of a path."""
IN_CODE = re.compile(r"`([^`\n]+)`")
FENCED = re.compile(r"^```sh$(.*?)^```$", re.DOTALL | re.MULTILINE)
PATH = re.compile(r"(?:[\w-]+/)+(?:[\w-]+\.(?:py|md|yaml|json|lock|txt|sh))?|[\w-]+\.py")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
CODE_BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.*)$", re.MULTILINE)
TARGET = re.compile(r"make ([a-z][a-z0-9-]*)")
FIELD = re.compile(r"(?<![\w./])(spec|status)((?:\.[a-zA-Z]+)+)")
MADE = ("build/", "results/", "dist/")
"""Folders that commands write."""


def identify(page: Path) -> str:
    return str(page.relative_to(ROOT))


def exists(path: str) -> bool:
    return any((ROOT / folder / path).exists() for folder in FOLDERS)


@pytest.mark.parametrize("page", PAGES, ids=identify)
def test_page_names_files_that_exist(page: Path) -> None:
    named = {name for name in IN_CODE.findall(page.read_text()) if PATH.fullmatch(name)}
    assert [name for name in sorted(named) if not (name.startswith(MADE) or exists(name))] == []


def github_anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def site_anchor(heading: str) -> str:
    """Return the anchor that MkDocs makes of a heading."""
    text = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and the site both give a page's headings."""
    headings = [
        re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading)
        for heading in HEADING.findall(CODE_BLOCK.sub("", page.read_text()))
    ]
    found = Counter(heading for heading in headings if github_anchor(heading))
    unique = [heading for heading, count in found.items() if count == 1]
    return {github_anchor(heading) for heading in unique} & {site_anchor(each) for each in unique}


def is_dead(page: Path, path: str, anchor: str) -> bool:
    if path.startswith(REPOSITORY):
        target = ROOT / path.removeprefix(REPOSITORY).lstrip("/")
    elif "://" in path or path.startswith("mailto:"):
        return False
    else:
        target = page.parent / path if path else page
    if not target.exists():
        return True
    return bool(anchor) and anchor not in anchors(target)


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=identify)
def test_page_links_to_files_and_headings_that_exist(page: Path) -> None:
    text = IN_CODE.sub("", CODE_BLOCK.sub("", page.read_text()))
    assert [link for link in LINK.findall(text) if is_dead(page, *link)] == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n## spec.`slo` & more\n\n```sh\n# no heading\n```\n## Twice\n## Twice\n"
    )
    assert not is_dead(page, "", "a-page")
    assert not is_dead(page, "page.md", "a-page")
    assert not is_dead(page, "https://example.com/nothing", "anchor")
    assert not is_dead(page, f"{REPOSITORY}/kernels/README.md", "")
    assert is_dead(page, "other.md", "")
    assert is_dead(page, "", "no-heading")
    assert is_dead(page, "", "specslo--more")  # the site has one hyphen
    assert is_dead(page, "", "twice")  # the second one is another on each
    assert is_dead(page, f"{REPOSITORY}/nothing.md", "")


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


def test_commands_of_the_quickstart_are_those_that_run_against_an_api_server() -> None:
    section = (ROOT / "README.md").read_text().partition("## Quickstart: Kubernetes")[2]
    code = FENCED.search(section)
    assert code
    commands = re.findall(r"^kubectl (.+?)(?: +#.*)?$", code[1], re.MULTILINE)
    assert tuple(commands) == quickstart.COMMANDS


def test_reference_is_what_its_sources_give(tmp_path: Path) -> None:
    # Run `make docs-reference` after a change of the CRD, the chart, a command or a metric.
    script = DOCS / "scripts" / "reference.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, cwd=ROOT)
    pages = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert "## spec.slo\n" in pages["macroinstance.md"]
    assert "`macroserve_requests_total`" in pages["metrics.md"]
    assert "`macroserve_operator_leader`" in pages["metrics.md"]
    assert "## macroserve bench serve\n" in pages["cli.md"]
    assert "`networkPolicy.served.enabled`" in pages["values.md"]
    assert {path.name: path.read_text() for path in (DOCS / "reference").iterdir()} == pages


def test_results_are_what_their_templates_and_figures_give() -> None:
    # Run `make docs-results` after a change of either.
    written = {path.name: path for path in (DOCS / "results").iterdir() if path.is_file()}
    generated = {
        name: path.read_text()
        for name, path in written.items()
        if "Generated by `make docs-results`" in path.read_text()
    }
    assert generated == results.pages()


@pytest.mark.parametrize("page", PAGES, ids=identify)
def test_page_has_no_places_to_be_filled_in(page: Path) -> None:
    assert "{{" not in IN_CODE.sub("", CODE_BLOCK.sub("", page.read_text()))


RATES = {
    "peers.macroserve.code.3.attainment": 0.95,
    "peers.macroserve.code.10.attainment": 0.5,
    "peers.macroserve.code.rate_at_90": 4.0,
    "peers.macroserve.code.rounds_outside": 0,
    "peers.slower.code.3.attainment": 0.85,
    "peers.slower.code.rate_at_90": 3.0,
    "peers.slower.code.rounds_outside": 1,
    "peers.faster.code.3.attainment": 0.95,
    "peers.faster.code.rate_at_90": 10.0,
    "peers.faster.code.rounds_outside": 1,
}


@pytest.mark.parametrize(
    ("deployment", "rate"), [("macroserve", "4.0"), ("slower", "< 3.0"), ("faster", "≥ 10.0")]
)
def test_sustained_rate_beyond_the_sent_rates_is_a_bound(deployment: str, rate: str) -> None:
    assert peers.sustained(RATES, "code", deployment) == rate


@pytest.mark.parametrize(
    ("other", "outside", "ratio"),
    [
        ("slower", False, "> 1.33"),
        ("faster", False, "≤ 0.40"),
        ("slower", True, "unknown"),
    ],
)
def test_advantage_over_a_bound_is_a_bound(other: str, outside: bool, ratio: str) -> None:
    ours = 3.0 if outside else 4.0
    figures = RATES | {
        "peers.macroserve.code.3.attainment": 0.85 if outside else 0.95,
        "peers.macroserve.code.rate_at_90": ours,
        "peers.macroserve.code.rounds_outside": int(outside),
        "peers.goodput_ratio.code": ours / RATES[f"peers.{other}.code.rate_at_90"],
    }
    assert peers.advantage(figures, "code", (other,)) == ratio


def test_code_with_a_bar_stays_in_its_cell() -> None:
    assert tables.table(["value"], [["`a|b`"]]).splitlines()[2] == "| <code>a&#124;b</code> |"


@pytest.mark.parametrize("data", RESULTS, ids=identify)
def test_figures_of_results_have_date_machine_and_commit(data: Path) -> None:
    figures = json.loads(data.read_text())
    assert datetime.date.fromisoformat(figures["date"])
    assert figures["machine"]
    assert re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", figures["commit"])


def test_navigation_of_the_site_has_every_page() -> None:
    site = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = [str(page.relative_to(DOCS)) for page in SITE_PAGES]
    assert [page for page in pages if not re.search(rf"\b{re.escape(page)}$", site, re.M)] == []
