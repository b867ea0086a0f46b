"""The adapter uses names of vLLM that all supported versions have.

Those versions are not installed here: ``vllm_touches.json`` says what their sources have.
"""

import json
from pathlib import Path

from support.vllm_names import KNOWN
from support.vllm_sources import Sources
from support.vllm_touches import Found, name_of, touches


def test_adapter_uses_what_all_supported_versions_have() -> None:
    known = json.loads(KNOWN.read_text())
    assert known["some"] == {}, "engine/vllm/versions.py is the place for what differs"
    found, of_all, of_none = touches(), set(known["all"]), set(known["none"])
    new = {t: found.used[t] for t in found.used if t not in of_all and name_of(t) not in of_none}
    # In place of vLLM's: it has to take the same arguments.
    new |= {t: found.ours[t] for t in found.ours if t not in of_all and name_of(t) in of_all}
    assert new == {}, "`make vllm-names` looks for them in the versions' sources"


ADAPTER = """
from vllm.a import Base, make
from vllm.b import Thing as Other

class Ours(Base):
    field: Other

    def __init__(self, given: Other | None, count: int) -> None:
        super().__init__(given, flag=True)
        self.given = given

    def step(self, first, *, second=None):
        made = Other(1, 2, name="x")
        self.running.append(count)
        return made.size, self.given.left, self.field.right, make(*count, deep=True)

    async def open(self, *args, **kwargs):
        def inner(thing: "Other"):
            return thing.inside
        return super().open(*args)

def use(value: Base, count: int):
    thing: Other | None = value.thing
    setattr(thing, "_private", getattr(value, "_other"), getattr(count, "real"))
    return value.limit + count.bit_length() + Base.DEFAULT
"""


def test_touches_of_each_form_are_found() -> None:
    found = Found()
    found.add("ours.py", ADAPTER)
    base, other, make = "vllm.a:Base", "vllm.b:Thing", "vllm.a:make"
    assert set(found.ours) == {
        f"{base}.step", f"{base}.step(first, second...)", f"{base}.given", f"{base}.field",
        f"{base}.open",
    }  # fmt: skip
    assert set(found.used) == {
        base, make, other,
        f"{base}.open", f"{base}.running", f"{base}.limit", f"{base}.DEFAULT",
        f"{other}(2)", f"{other}(name)", f"{other}.size", f"{other}.left", f"{other}.right",
        f"{other}.inside", f"{make}(deep)", f"{base}.thing", f"{other}._private", f"{base}._other",
    }  # fmt: skip
    assert found.used[f"{other}.size"] == ["ours.py:15"]


SOURCES = {
    "vllm/__init__.py": "from .version import __version__",
    "vllm/version.py": "try:\n    import it\nexcept ImportError:\n    __version__ = 'x'",
    "vllm/a/__init__.py": "from vllm.a.base import *\nfrom . import part",
    "vllm/a/part.py": "LIMIT: int = 3",
    "vllm/a/base.py": """
from dataclasses import dataclass
from vllm.a.root import Root
import outside

class Base(Root):
    DEFAULT = 1

    def step(self, first, second=None): ...
    def open(self, *args): ...

@dataclass
class Thing(Root):
    size: int
    name: str = ""

class Elsewhere(outside.Model): ...

def make(one, *, deep): ...
""",
    "vllm/a/root.py": """
class Root:
    def __init__(self, given):
        self.running, self.waiting = [], []
        if given:
            self.limit: int = 3
""",
}


def test_sources_have_what_they_define_inherit_and_pass_on(tmp_path: Path) -> None:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    sources = Sources(tmp_path)
    has = [
        "vllm:__version__", "vllm.a:part", "vllm.a:part.LIMIT", "vllm.a:Base",
        "vllm.a:Base.DEFAULT", "vllm.a:Base.waiting", "vllm.a:Base.limit", "vllm.a:Base(given)",
        "vllm.a:Base(1)",
        "vllm.a:Base.step(first, second...)", "vllm.a:Base.step(first, second, third...)",
        "vllm.a:Base.step(2)", "vllm.a:Base.open(7)", "vllm.a:make(1)", "vllm.a:make(deep)",
        "vllm.a:Elsewhere(anything)",
    ]  # fmt: skip
    lacks = [
        "vllm.a:gone", "vllm.gone:Base", "vllm.a:part.GONE", "vllm.a:Base.gone", "vllm.a:Base(2)",
        "vllm.a:Base.step(first...)", "vllm.a:Base.step(3)", "vllm.a:Base.open(first...)",
        "vllm.a:make(2)", "vllm.a:make(gone)", "vllm.a:Elsewhere.gone",
    ]  # fmt: skip
    assert [touch for touch in has if not sources.has(touch)] == []
    assert [touch for touch in lacks if sources.has(touch)] == []
