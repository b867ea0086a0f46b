"""Watch a manifest for saves of any kind: in place, by a rename, through links.

The path is read twice a second instead of watched: a watch holds an inode or a folder, and both
are replaced by editors, by ``git checkout`` and by Kubernetes' ConfigMaps. A manifest is small.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from macroserve.api.manifest import ManifestError
from macroserve.local.manifest_file import Saved, read

POLL_S = 0.5


async def saves(
    path: Path, known: Saved, poll_s: float = POLL_S
) -> AsyncIterator[Saved | ManifestError]:
    """Yield the saves that come after ``known``, without end.

    A save is yielded once two polls agree, so that a half-written file is no save. A file that
    cannot be read counts as another save.
    """
    last: Saved | str = known
    candidate: Saved | str = known
    while True:
        await asyncio.sleep(poll_s)
        found = await asyncio.to_thread(_read, path)
        seen = str(found) if isinstance(found, ManifestError) else found
        if seen == candidate != last:
            last = seen
            yield found
        candidate = seen


def _read(path: Path) -> Saved | ManifestError:
    try:
        return read(path)
    except ManifestError as error:
        return error
