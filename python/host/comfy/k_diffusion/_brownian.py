"""Noise that belongs to a way from one noise level to another: however the way is cut, the pieces add up to the same."""

import numpy
import torch

# Words of the pool from which seeds of nodes are made.
_POOL = 24


def _seed(entropy, spawn=None):
    if spawn is None:
        return int(numpy.random.SeedSequence(entropy, pool_size=_POOL).generate_state(3)[0])
    return int(numpy.random.SeedSequence(entropy, spawn_key=spawn, pool_size=_POOL).generate_state(4)[0])


class _Node:
    __slots__ = ("start", "end", "key", "depth", "step", "left", "right")

    def __init__(self, start, end, key, depth, step):
        self.start, self.end, self.key, self.depth, self.step = start, end, key, depth, step
        self.left = self.right = None


class _Tree:
    """A Brownian path as halves of halves; each half has its seed, so that no order of questions changes it."""

    def __init__(self, like, start, end, entropy):
        self.shape, self.dtype, self.device = like.shape, like.dtype, like.device
        self.entropy = int(entropy)
        whole = self._noise(_seed(self.entropy)) * (end - start) ** 0.5
        self.top = _Node(round(start, 6), round(end, 6), 0, 0, whole)

    def _noise(self, seed):
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(self.shape, dtype=self.dtype, device=self.device, generator=generator)

    def _split(self, node):
        middle = round(0.5 * (node.start + node.end), 6)
        left, right = middle - node.start, node.end - middle
        part = 1.0 / (node.end - node.start)
        noise = self._noise(_seed(self.entropy, (node.key, node.depth)))
        first = (left * node.step) * part + (left * right * part) ** 0.5 * noise
        node.left = _Node(node.start, middle, 2 * node.key, node.depth + 1, first)
        node.right = _Node(middle, node.end, 2 * node.key + 1, node.depth + 1, node.step - first)
        return middle

    def _reach(self, node, target):
        """Splits until a border lies at the target."""
        while True:
            middle = self._split(node)
            if middle == target or not node.left.end > node.left.start or not node.right.end > node.right.start:
                return
            node = node.left if target < middle else node.right

    def _pieces(self, node, start, end, found):
        if start <= node.start and node.end <= end:
            found.append(node.step)
            return
        if node.left is None:
            self._reach(node, end if start == node.start else start)
        middle = node.left.end
        if start < middle:
            self._pieces(node.left, start, min(end, middle), found)
        if end > middle:
            self._pieces(node.right, max(start, middle), end, found)

    def __call__(self, start, end):
        start, end = (round(min(max(time, self.top.start), self.top.end), 6) for time in (start, end))
        found = []
        if start < end:
            self._pieces(self.top, start, end, found)
        if not found:
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        total = found[0]
        for step in found[1:]:
            total = total + step
        return total


def _sorted(a, b):
    return (a, b, 1) if a < b else (b, a, -1)


def _number(value):
    return float(torch.as_tensor(value).to(torch.float32)) if isinstance(value, torch.Tensor) else float(value)


class BatchedBrownianTree:
    """One path for a whole batch, or with a list of seeds one for each of its items."""

    def __init__(self, x, t0, t1, seed=None, **kwargs):
        self.cpu_tree = kwargs.pop("cpu", True)
        start, end, self.sign = _sorted(_number(t0), _number(t1))
        self.batched = isinstance(seed, (list, tuple))
        if self.batched and len(seed) != x.shape[0]:
            raise ValueError(f"BatchedBrownianTree: {len(seed)} seeds for a batch of {x.shape[0]}")
        if seed is None:
            seed = int(torch.randint(0, 2**63 - 1, []))
        like = x[0] if self.batched else x
        if self.cpu_tree:
            like = like.detach().cpu()
        self.trees = [_Tree(like, start, end, each) for each in (seed if self.batched else [seed])]

    def __call__(self, t0, t1):
        device = t0.device if isinstance(t0, torch.Tensor) else None
        start, end, sign = _sorted(_number(t0), _number(t1))
        made = torch.stack([tree(start, end) for tree in self.trees]) * (self.sign * sign)
        made = made if self.batched else made[0]
        return made.to(device) if self.cpu_tree and device is not None else made


class BrownianTreeNoiseSampler:
    """Noise between two noise levels, of deviation one."""

    def __init__(self, x, sigma_min, sigma_max, seed=None, transform=lambda x: x, cpu=False):
        self.transform = transform
        start, end = transform(torch.as_tensor(sigma_min)), transform(torch.as_tensor(sigma_max))
        self.x_device = x.device
        self.tree = BatchedBrownianTree(x, start, end, seed, cpu=cpu)

    def __call__(self, sigma, sigma_next):
        start, end = self.transform(torch.as_tensor(sigma)), self.transform(torch.as_tensor(sigma_next))
        return (self.tree(start, end) / (end - start).abs().sqrt()).to(self.x_device)
