"""What the training scripts share."""

import copy
import os
import signal
import sys
import time

import torch
import torch.multiprocessing
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
T0 = time.time()
torch.set_num_threads(int(os.environ.get("THREADS", os.cpu_count() or 1)))


def log(*what) -> None:
    print(f"[{time.time() - T0:7.1f}]", *what, flush=True)


def autocast():
    return torch.autocast(device, dtype=torch.bfloat16)


def together(work, *args) -> None:
    """Runs `work(rank, *args)` in as many processes as there are cores, each with one thread, or in this one with a GPU.

    Modules and tensors among the arguments are shared: each process moves the same weights by its own gradients, without
    waiting for the others. Where cores come and go, as on a rented machine, that is twice as fast as sharing each operation.
    """
    if device == "cuda":
        return work(0, *args)
    for arg in args:
        if isinstance(arg, (torch.nn.Module, torch.Tensor)):
            getattr(arg, "share_memory", getattr(arg, "share_memory_", None))()
    os.environ |= {"THREADS": "1", "OMP_NUM_THREADS": "1"}
    # So that they end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.multiprocessing.spawn(work, args, nprocs=torch.get_num_threads(), daemon=True)


def keep(value, path) -> None:
    """Writes it whole or not at all."""
    part = path.with_suffix(".part")
    torch.save(value, part)
    part.rename(path)


class Average:
    """A running mean of weights."""

    def __init__(self, net, decay: float) -> None:
        self.net, self.decay, self.steps = copy.deepcopy(net).requires_grad_(False), decay, 0
        self.mine, self.live = list(self.net.parameters()), list(net.parameters())

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self.mine, self.live, 1 - decay)


def write_sheet(pictures, path) -> None:
    """Pictures in 0..1, eight in a row, half size."""
    from PIL import Image

    small = F.avg_pool2d(pictures.detach().float().cpu(), 2).clamp(0, 1)
    rows = [torch.cat(list(row), 2) for row in small.split(8) if len(row) == 8]
    sheet = (torch.cat(rows, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    Image.fromarray(sheet.numpy()).save(path)
