"""`python -m cluster`: build the binaries, and start and stop a cluster for interactive use."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cluster import binaries, keeper, packages
from cluster.errors import ClusterError
from cluster.steps import Steps

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


class Tier(StrEnum):
    api = "api"
    nodes = "nodes"


TierOption = Annotated[
    Tier, typer.Option(help="api: the API alone, without root. nodes: two real nodes as well.")
]

ImageOption = Annotated[
    list[Path] | None, typer.Option(help="An image's archive that every node gets; again for more.")
]


@app.command()
def build(tier: TierOption = Tier.nodes) -> None:
    """Build missing binaries, and install the packages that the tier needs."""
    steps = Steps()
    nodes = tier is Tier.nodes
    packages.install(packages.NODES_TIER if nodes else packages.API_TIER, steps)
    folder = binaries.build(steps)
    print(f"Binaries are in {folder}.")


@app.command()
def up(tier: TierOption = Tier.nodes, image: ImageOption = None) -> None:
    """Start a cluster that stays until `down`."""
    if image and tier is not Tier.nodes:
        raise typer.BadParameter("images are for nodes, which the tier has none of")
    build(tier)
    keeper.start(tier, image or ())


@app.command()
def down() -> None:
    """Stop the cluster, or remove the remains of one."""
    keeper.stop()


@app.command(hidden=True)
def keep(tier: Tier, image: ImageOption = None) -> None:
    """Run the background process of `up`, with which the cluster ends."""
    keeper.keep(tier, image or ())


def main() -> None:
    try:
        app()
    except ClusterError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
