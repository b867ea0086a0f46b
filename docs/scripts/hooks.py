"""Add the generated pages of the reference to MkDocs' site (see ``reference.py``), and fill in the
figures of the results' pages (see ``results.py``)."""

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.append(str(Path(__file__).parent))
from results import fill

PAGES = Path(__file__).parents[2] / "build" / "reference"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = sorted(PAGES.glob("*.md"))
    if not pages:
        raise PluginError("build/reference is empty: run `make docs`.")
    for page in pages:
        files.append(File.generated(config, f"reference/{page.name}", content=page.read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if not page.file.src_uri.startswith("results/"):
        return markdown
    try:
        return fill(markdown)
    except (OSError, KeyError) as error:
        raise PluginError(f"{page.file.src_uri}: no figure for {error}") from error
