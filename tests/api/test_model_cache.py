"""Decision table of invalid caches, with the error messages."""

import pytest
from support.manifests import edited

from macroserve.api.manifest import ManifestError, parse

ONE_SOURCE = "a mapping with one of claim, hostPath, image"
HOST_PATH = "an absolute path without .. of a folder other than the root"
DNS = "a DNS name: up to 253 of a-z, 0-9, - and ., a letter or digit at either end"
TEXT = "a non-empty string"

# path, value given, value as shown, what is allowed
BAD_VALUES = [
    ("spec.model.cache", {}, "a mapping", ONE_SOURCE),
    ("spec.model.cache", {"readOnly": True}, "a mapping", ONE_SOURCE),
    ("spec.model.cache", {"claim": "models", "image": "r/m:1"}, "a mapping", ONE_SOURCE),
    ("spec.model.cache", {"claim": "models", "hostPath": "/m"}, "a mapping", ONE_SOURCE),
    ("spec.model.cache", "models", "'models'", ONE_SOURCE),
    ("spec.model.cache.claim", "Models", "'Models'", DNS),
    ("spec.model.cache.claim", "../models", "'../models'", DNS),
    ("spec.model.cache.hostPath", "models", "'models'", HOST_PATH),
    ("spec.model.cache.hostPath", "/", "'/'", HOST_PATH),
    ("spec.model.cache.hostPath", "/.", "'/.'", HOST_PATH),
    ("spec.model.cache.hostPath", "/var/../etc", "'/var/../etc'", HOST_PATH),
    ("spec.model.cache.hostPath", "/var/..", "'/var/..'", HOST_PATH),
    ("spec.model.cache.hostPath", "/a\0", r"'/a\x00'", HOST_PATH),
    ("spec.model.cache.hostPath", "/" + "a" * 4096, f"'/{'a' * 55}...", HOST_PATH),
    ("spec.model.cache.hostPath", 7, "7", HOST_PATH),
    ("spec.model.cache.image", "", "''", TEXT),
    ("spec.model.cache.readOnly", "yes", "'yes'", "true or false"),
]


@pytest.mark.parametrize(("path", "value", "shown", "allowed"), BAD_VALUES)
def test_cache_with_a_bad_value_names_it_and_the_valid_values(
    path: str, value: object, shown: str, allowed: str
) -> None:
    with pytest.raises(ManifestError) as refused:
        parse(edited((path, value)))
    assert str(refused.value) == f"{path} is {shown}, must be {allowed}."
