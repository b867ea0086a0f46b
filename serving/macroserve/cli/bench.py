"""The group `macroserve bench`, to which `macroserve-lab` adds benchmarks of Macroserve itself."""

import typer

from macroserve.cli.bench_serve import serve

bench = typer.Typer(no_args_is_help=True)
bench.command("serve")(serve)


@bench.callback()
def describe() -> None:
    """Load an OpenAI endpoint; with macroserve-lab, measure Macroserve itself."""
