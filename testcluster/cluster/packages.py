"""The few programs that a cluster uses from the machine; none is a daemon."""

import os
import shutil
import subprocess

from cluster.errors import ClusterError
from cluster.steps import Steps

API_TIER = {"openssl": "openssl", "setpriv": "util-linux"}
NODES_TIER = API_TIER | {
    "conntrack": "conntrack",
    "dnsmasq": "dnsmasq-base",
    "ethtool": "ethtool",
    "ip": "iproute2",
    "iptables": "iptables",
    "mount": "mount",
    "nsenter": "util-linux",
    "sysctl": "procps",
    "unshare": "util-linux",
}
"""Debian packages by program."""


def require(programs: dict[str, str]) -> None:
    """Raise ClusterError if a program is missing."""
    if missing := _missing(programs):
        raise ClusterError(f"programs are missing: apt-get install {' '.join(missing)}")


def install(programs: dict[str, str], steps: Steps) -> None:
    """Install missing programs. Raises ClusterError with their names without root."""
    missing = _missing(programs)
    if missing and os.geteuid() == 0:
        with steps(f"Packages: {', '.join(missing)}"):
            environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
            for arguments in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
                subprocess.run(["apt-get", "-qq", *arguments], env=environment, check=True)
    require(programs)


def _missing(programs: dict[str, str]) -> list[str]:
    # A user's PATH may lack these folders.
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    return sorted(
        {package for program, package in programs.items() if not shutil.which(program, path=path)}
    )
