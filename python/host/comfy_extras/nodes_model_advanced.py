"""What packs build ways of sampling from, beside the classes of the nodes."""

from comfy.model_sampling import LCM, X0, ModelSamplingDiscreteDistilled, rescale_zero_terminal_snr_sigmas  # noqa: F401
from fresco_host.placeholders import fallback

__getattr__ = fallback(__name__)
