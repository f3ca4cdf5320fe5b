"""The newer interface. All its versions have one surface here: what an older one lacks does not harm it."""

import sys

from . import latest

for _version in ("v0_0_1", "v0_0_2"):
    sys.modules[f"{__name__}.{_version}"] = latest
    globals()[_version] = latest
