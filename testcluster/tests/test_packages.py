import pytest
from cluster import ClusterError, packages


def test_missing_programs_are_named_by_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program, path: program == "openssl")
    with pytest.raises(ClusterError, match=r"apt-get install dnsmasq-base util-linux$"):
        packages.require(
            {
                "dnsmasq": "dnsmasq-base",
                "nsenter": "util-linux",
                "openssl": "openssl",
                "unshare": "util-linux",
            }
        )


def test_present_programs_pass_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program, path: f"/usr/bin/{program}")
    packages.require(packages.NODES_TIER)


def test_packages_are_installed_by_root_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program, path: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("it was tried"))
    with pytest.raises(ClusterError, match="openssl"):
        packages.install({"openssl": "openssl"}, steps=lambda _: pytest.fail("it was told"))  # type: ignore[arg-type]
