"""Noise levels by the geometry of trajectories (arXiv 2405.11326)."""

from fresco_host import models
from fresco_host.placeholders import fallback

from .nodes_align_your_steps import loglinear_interp  # noqa: F401


class _Levels(dict):
    """A list of levels for each number of steps from 2 to 20, by a coefficient from 0.80 to 1.50. Fresco's node has them."""

    def __missing__(self, coefficient):
        wanted = round(float(coefficient), 2)
        if wanted not in dict.keys(self):
            raise KeyError(coefficient)
        return self[wanted]

    def __getitem__(self, coefficient):
        rows = super().__getitem__(coefficient)
        if rows is None:
            given = {"coeff": coefficient, "denoise": 1.0}
            rows = [_row(models.run_node("GITSScheduler", {**given, "steps": steps})[0]) for steps in range(2, 21)]
            self[coefficient] = rows
        return rows


def _row(sigmas):
    levels = [float(level) for level in sigmas]
    # The node ends at zero, where the lists have the least level of the models.
    levels[-1] = 0.02916753
    return levels


NOISE_LEVELS = _Levels({round(0.8 + 0.05 * i, 2): None for i in range(15)})

__getattr__ = fallback(__name__)
