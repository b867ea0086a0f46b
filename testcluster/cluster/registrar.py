"""Registers CRDs with the API server (see `apiservices`) for as long as the cluster is up.

A process of its own: `python -m cluster.registrar URL CA CERTIFICATE KEY BACKEND`.
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
        # An API server that goes away meanwhile tells of all CRDs again once it is back.
        with suppress(httpx.HTTPError):
            apiservices.register(crds["items"], apiservices.Backend.from_json(backend), api)


if __name__ == "__main__":
    main()
