"""Noise levels that were fitted to families of models (arXiv 2404.14507)."""

from fresco_host.placeholders import fallback

NOISE_LEVELS = {
    "SD1": [
        14.6146412293, 6.4745760956, 3.8636745985, 2.694615152, 1.8841921177, 1.3943805092,
        0.9642583904, 0.6523686016, 0.3977456272, 0.1515232662, 0.0291671582,
    ],
    "SDXL": [
        14.6146412293, 6.3184485287, 3.7681790315, 2.1811480769, 1.3405244945, 0.8620721141,
        0.5550693289, 0.3798540708, 0.2332364134, 0.1114188177, 0.0291671582,
    ],
    "SVD": [
        700.0, 54.5, 15.886, 7.977, 4.248, 1.789,
        0.981, 0.403, 0.173, 0.034, 0.002,
    ],
}


def loglinear_interp(t_steps, num_steps):
    """The levels for another number of steps, between the logarithms of these."""
    import numpy

    places = numpy.linspace(0, 1, len(t_steps))
    logs = numpy.log(numpy.array(t_steps[::-1]))
    return numpy.exp(numpy.interp(numpy.linspace(0, 1, num_steps), places, logs))[::-1].copy()


__getattr__ = fallback(__name__)
