"""The chart's test: is the operator answering as Prometheus, Alertmanager and API servers need it?

Runs in the operator's image with nothing but the standard library; prints a line for each check.
"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

HOST = os.environ["OPERATOR_HOST"]
CA_FILE = Path("/etc/macroserve/webhook/ca.crt")


def answer(
    request: urllib.request.Request, context: ssl.SSLContext | None = None
) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def metrics_are_served() -> bool:
    status, page = answer(urllib.request.Request(f"http://{HOST}:9090/metrics"))
    return status == 200 and "macroserve_operator_" in page


def an_alert_needs_the_token() -> bool:
    status, _ = answer(urllib.request.Request(f"http://{HOST}:9095/alerts", data=b"{}"))
    return status == 401


def a_wrong_macroinstance_is_refused() -> bool:
    """Over TLS with the certificate that API servers trust."""
    resource = {"group": "macroserve.io", "version": "v1alpha1", "resource": "macroinstances"}
    kind = {"group": "macroserve.io", "version": "v1alpha1", "kind": "MacroInstance"}
    wrong = {
        "apiVersion": "macroserve.io/v1alpha1",
        "kind": "MacroInstance",
        "metadata": {"name": "check", "namespace": "default"},
        "spec": {"instances": 0},
    }
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "check",
            "kind": kind,
            "resource": resource,
            "operation": "CREATE",
            "userInfo": {"username": "check", "uid": "check", "groups": []},
            "name": "check",
            "namespace": "default",
            "object": wrong,
            "oldObject": None,
            "dryRun": True,
        },
    }
    request = urllib.request.Request(
        f"https://{HOST}/validate",
        data=json.dumps(review).encode(),
        headers={"Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=CA_FILE if CA_FILE.exists() else None)
    status, page = answer(request, context)
    return status == 200 and not json.loads(page)["response"]["allowed"]


def main() -> int:
    failed = 0
    for check in (metrics_are_served, an_alert_needs_the_token, a_wrong_macroinstance_is_refused):
        try:
            passed, error = check(), ""
        except (OSError, ValueError, KeyError) as problem:
            passed, error = False, f": {problem}"
        failed += not passed
        print("ok  " if passed else "FAIL", check.__name__.replace("_", " ") + error)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
