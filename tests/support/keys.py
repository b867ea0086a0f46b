"""Keys of a deployment's components."""

from macroserve.api.keys import Purpose
from macroserve.serving.security.key_source import KeySource, LiveKeys

SECRET = "the secret"


def source(secret: str = SECRET, *purposes: Purpose) -> KeySource:
    """Return a source of keys, by default of all purposes."""
    return KeySource(purposes or tuple(Purpose), secret=secret)


def live(secret: str = SECRET, *purposes: Purpose) -> LiveKeys:
    return LiveKeys(source(secret, *purposes))
