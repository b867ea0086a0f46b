"""DNS names of Services for pods.

dnsmasq answers from a hosts file, which this module writes after each change of an Endpoints
object. Headless Services have the addresses of their endpoints, others the cluster IP. It runs as a
separate process: `python -m cluster.dns URL CA CERTIFICATE KEY FOLDER`.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cluster.api import Access, Api

DOMAIN = "cluster.local"


def dnsmasq_flags(address: str, folder: Path) -> list[str]:
    """Return the flags to answer at `address` from the files in `folder`, only for the cluster's
    domain."""
    return [
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--pid-file",
        "--log-facility=-",
        # As who it is started: a process that changes that no longer ends with its parent.
        "--user=root",
        "--group=root",
        "--no-resolv",
        "--no-hosts",
        f"--listen-address={address}",
        "--bind-interfaces",
        "--except-interface=lo",
        f"--hostsdir={folder}",
        f"--local=/{DOMAIN}/",
    ]


def hosts(services: Iterable[dict[str, Any]], endpoints: Iterable[dict[str, Any]]) -> str:
    """Return a line for each address and name, as in /etc/hosts.

    Endpoints have the ready pods or, if a Service publishes addresses that are not ready, all.
    """
    addresses = {_key(found): _ready(found) for found in endpoints}
    lines = []
    for service in services:
        name, namespace = key = _key(service)
        domain = f"{name}.{namespace}.svc.{DOMAIN}"
        cluster_ip = service["spec"].get("clusterIP")
        if cluster_ip == "None":
            for address in addresses.get(key, []):
                lines.append(f"{address['ip']} {domain}")
                if "hostname" in address:
                    lines.append(f"{address['ip']} {address['hostname']}.{domain}")
        elif cluster_ip:
            lines.append(f"{cluster_ip} {domain}")
    return "".join(f"{line}\n" for line in sorted(lines))


def _key(found: dict[str, Any]) -> tuple[str, str]:
    return found["metadata"]["name"], found["metadata"]["namespace"]


def _ready(endpoints: dict[str, Any]) -> list[dict[str, Any]]:
    subsets = endpoints.get("subsets") or []
    return [address for subset in subsets for address in subset.get("addresses", [])]


def _hosts_of(api: Api) -> Iterator[str]:
    """Yield the hosts now and after each change of Endpoints, which new Services get at once."""
    for endpoints in api.watch("/api/v1/endpoints"):
        services = api.get("/api/v1/services")["items"]
        yield hosts(services, endpoints["items"])


def main() -> None:
    *access, folder = sys.argv[1:]
    target = Path(folder) / "services"
    partial = target.with_name(".partial")  # dnsmasq ignores files whose names begin with a dot
    written = ""
    for text in _hosts_of(Api(Access(*access))):
        if text != written:
            partial.write_text(text)
            partial.replace(target)
            written = text


if __name__ == "__main__":
    main()
