"""Add the generated pages of the reference to MkDocs' site (see ``reference.py``)."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

PAGES = Path(__file__).parents[2] / "build" / "reference"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = sorted(PAGES.glob("*.md"))
    if not pages:
        raise PluginError("build/reference is empty: run `make docs`.")
    for page in pages:
        files.append(File.generated(config, f"reference/{page.name}", content=page.read_text()))
    return files
