"""What a reproduction ends with: a file of all figures, a table of those that the paper prints."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from macroserve.sim.papers.measure import Row


def table(paper: str, rows: Sequence[Row]) -> Table:
    """Those that the paper prints, too."""
    shown = Table("figure", "case", "strategy", "metric", title=paper)
    for column in ("paper", "ours", "ratio"):
        shown.add_column(column, justify="right")
    for row in rows:
        if row.paper is not None and row.ratio is not None:
            numbers = (f"{row.paper:.4g}", f"{row.ours:.4g}", f"{row.ratio:.2f}")
            shown.add_row(row.figure, row.case, row.strategy, row.metric, *numbers)
    return shown


def write(path: Path, rows: Sequence[Row]) -> None:
    documents = [asdict(row) | {"ratio": row.ratio} for row in rows]
    path.write_text(json.dumps(documents, indent=2) + "\n")
