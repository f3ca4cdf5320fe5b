"""Functions of packs that the engine calls while it samples, on threads of their own: the node's thread may be waiting for
the very run that calls them."""

import concurrent.futures
import ctypes
import struct
import threading

from . import state, values
from .channel import Outgoing

_pool = concurrent.futures.ThreadPoolExecutor(max_workers=8, thread_name_prefix="callback")
_running = {}
_lock = threading.Lock()
_current = threading.local()


def start(asked, segments, number):
    _pool.submit(_run, asked, segments, number)


def stop(number):
    """The engine does not wait any longer."""
    import comfy.model_management as management

    with _lock:
        thread = _running.get(number)
        if thread is not None:
            error = ctypes.py_object(management.InterruptProcessingException)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error)


def _run(asked, segments, number):
    from . import contract

    channel = state.channel
    try:
        with _lock:
            _running[number] = threading.get_ident()
        _current.number = number
        target = values.held_object(asked["value"])
        method = asked.get("method")
        if method == "fresco_seed":
            # Any object with a seed and a function for noise is a NOISE.
            function = lambda: int(getattr(target, "seed", 0) or 0)  # noqa: E731
        elif method == "fresco_sample" and not hasattr(target, method):
            raise TypeError(f"{type(target).__name__} is no sampler: comfy.samplers.KSAMPLER has a function that Fresco can call")
        else:
            function = getattr(target, method) if method else target
        arguments = [values.decode(value, segments, None) for value in asked["args"]]
        with contract._no_gradients():
            result = function(*arguments)
        with _lock:
            _running.pop(number, None)
        out = Outgoing()
        channel.reply(number, _encode(result, values.Encoder(out)), out)
    except BaseException as error:
        channel.error(number, contract.error_body(error))
    finally:
        with _lock:
            _running.pop(number, None)
        _current.number = None


class Parts(dict):
    """Several values by name; conditionings among them keep what the engine can use."""


def _encode(value, encoder):
    if isinstance(value, Parts):
        return {key: encoder.item(part, "CONDITIONING") for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(part, encoder) for part in value]
    if values._is_tensor(value) or (type(value).__module__ == "numpy" and getattr(value, "shape", ())):
        return encoder.tensor(value)
    return encoder.item(value)


def back(what, *arguments):
    """Asks the engine for something that belongs to the running callback."""
    out = Outgoing()
    encoder = values.Encoder(out)
    asked = {"to": _current.number, "what": what, "args": [_encode(value, encoder) for value in arguments]}
    answer, segments = state.channel.call("back", asked, out)
    return values.decode(answer, segments, None)


def number_of(value):
    """One number of a tensor of any kind, or a plain one."""
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, values.MissingTorch):
        return struct.unpack_from("<f", value._buffer)[0]
    flat = value.flatten() if hasattr(value, "flatten") else value
    return float(flat[0])


def floats(value):
    """All numbers of a tensor of one dimension."""
    if isinstance(value, values.MissingTorch):
        return list(struct.unpack(f"<{len(value)}f", value._buffer))
    return [float(each) for each in value]


def numbers(items):
    """A tensor of one dimension."""
    torch = values._torch()
    if torch is not None:
        return torch.tensor(list(items), dtype=torch.float32)
    items = list(items)
    return values.MissingTorch(bytearray(struct.pack(f"<{len(items)}f", *items)), [len(items)])


class Guidance:
    """A function of a pack for guidance, as the engine calls it."""

    def __init__(self, function, model):
        self.function = function
        self.model = model

    def fresco_guidance(self, way, x, sigma, cfg, cond, uncond, levels, *more):
        sigma = numbers([sigma] * x.shape[0])
        options = options_of_run(self.model, levels, sigma)
        base = {
            "input": x, "sigma": sigma, "timestep": sigma, "cond_scale": cfg, "model": self.model.model, "model_options": options,
        }
        own = [StepCond(0), StepCond(1)]
        if way == "pre":
            out = self.function({**base, "conds": own, "conds_out": [cond, uncond]})
            return [out[0], out[1] if len(out) > 1 else uncond]
        if way == "post":
            given = {
                **base, "denoised": more[0], "cond": own[0], "uncond": own[1], "cond_denoised": cond, "uncond_denoised": uncond,
            }
            return self.function(given)
        given = {
            **base, "cond": _minus(x, cond), "uncond": _minus(x, uncond), "cond_denoised": cond, "uncond_denoised": uncond,
            "input_cond": own[0], "input_uncond": own[1],
        }
        return self.function(given)


# The kind of functions around a whole run.
AROUND = "outer_sample"


class Around:
    """Functions of packs around a whole run, which the engine calls in place of the run; it makes the run when they ask."""

    def __init__(self, model):
        self.model = model
        self.functions = model.get_all_wrappers(AROUND)

    def fresco_loop(self, noise, latent_image, sampler, sigmas, denoise_mask, seed):
        import comfy.patcher_extension
        import comfy.samplers

        guider = comfy.samplers.CFGGuider(self.model)
        guider.model_options = run_options(self.model.model_options, sigmas)
        guider.inner_model = self.model.model

        def run(noise, latent_image, sampler, sigmas, denoise_mask=None, callback=None, disable_pbar=False, seed=seed, **more):
            from . import models

            kept = None if callback is None else models._Keep(callback)
            return back("run", noise, latent_image, sampler, sigmas, denoise_mask, seed, kept)

        executor = comfy.patcher_extension.WrapperExecutor.new_class_executor(run, guider, self.functions)
        shapes = [tuple(latent_image.shape)]
        return executor.execute(noise, latent_image, sampler, sigmas, denoise_mask, None, True, seed, latent_shapes=shapes)


def options_of_run(holder, levels, sigma):
    """Packs keep things in the options from step to step: they are the same for all functions and a whole run."""
    now, row = number_of(sigma), floats(levels)
    known = holder.__dict__.get("_fresco_run")
    starts = known is None or known[0] != row or (now != known[1] and row and now == row[0])
    options = run_options(holder.model_options, levels) if starts else known[2]
    holder._fresco_run = (row, now, options)
    options["transformer_options"]["sigmas"] = sigma
    return options


def run_options(options, levels):
    """`model_options` as functions see them while the engine samples: with the noise levels of the run."""
    inner = {**(options.get("transformer_options") or {}), "sample_sigmas": levels, "cond_or_uncond": [1, 0]}
    return {**options, "transformer_options": inner}


class StepCond:
    """One of the two prompts of a step, by its place: the engine has it, and `comfy.samplers.calc_cond_batch` can be asked what
    the model predicts with it."""

    def __init__(self, place):
        self.place = place


def _minus(a, b):
    if isinstance(a, values.MissingTorch):
        return a.numpy() - b.numpy()
    return a - b
