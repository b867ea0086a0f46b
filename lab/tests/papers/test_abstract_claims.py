"""Claims of the papers' abstracts: our gain over the paper's, and the published file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from macroserve_lab.cli.reproduce_report import write_claims
from macroserve_lab.papers.claims.figures import FIGURES, AbstractClaim

FASTER = AbstractClaim(
    "Paper",
    "throughput, up to",
    "ours over vllm",
    "times",
    max,
    3.0,
    1.0,
    {"short": lambda values: values["short"], "long": lambda values: values["long"]},
)


def test_ratio_of_a_claim_is_that_of_the_gains() -> None:
    found = FASTER.document({"short": 1.5, "long": 0.8})
    assert (found["ours"], found["ratio"], found["sign"]) == (1.5, 0.25, "same")
    assert (found["cases_of_same_sign"], found["cases"]) == (1, {"short": 1.5, "long": 0.8})


@pytest.mark.parametrize(("theirs", "sign"), [(3.0, "opposite"), (0.5, "same")])
def test_sign_of_a_claim_is_compared_with_the_papers(theirs: float, sign: str) -> None:
    claim = replace(FASTER, theirs=theirs)
    assert claim.document({"short": 0.9, "long": 0.8})["sign"] == sign


def test_claims_are_written_with_their_origin_and_set_up(tmp_path: Path) -> None:
    values = {key: 2.0 for each in FIGURES["aptserve"].measurements for key in [each.key]}
    write_claims(tmp_path / "claims.json", {"aptserve": (FIGURES["aptserve"], [])}, values)
    written = json.loads((tmp_path / "claims.json").read_text())
    assert {"date", "machine", "commit"} < written.keys()
    (claim,) = written["claims"]
    assert (claim["paper"], claim["theirs"], claim["ours"]) == ("Apt-Serve", 8.8, 1.0)
    assert claim["setup"].startswith("Simulated devices")
