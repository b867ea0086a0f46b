"""Continuous registration of CRDs at the API server (see `apiservices`).

It runs as a separate process: `python -m cluster.registrar URL CA CERTIFICATE KEY BACKEND`.
"""

import sys
from contextlib import suppress

import httpx

from cluster import apiservices
from cluster.api import Access, Api


def main() -> None:
    *access, backend = sys.argv[1:]
    api = Api(Access(*access))
    for crds in api.watch(apiservices.CRDS):
        # After an outage, the watch yields all CRDs again.
        with suppress(httpx.HTTPError):
            apiservices.register(crds["items"], apiservices.Backend.from_json(backend), api)


if __name__ == "__main__":
    main()
